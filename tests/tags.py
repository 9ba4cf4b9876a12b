"""What a browser would find in a piece of HTML."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The tags that a browser finds, their attributes, and what stands in scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.attributes, self.script = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def values(self, *names):
        """Of all attributes with one of these names, where they have any."""
        return [value for name, value in self.attributes if name in names and value]

    def handle_data(self, data):
        if self.tags[-1:] == ["script"] and data.startswith("{"):
            self.script += data
