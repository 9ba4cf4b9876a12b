# What Snakemake asks of a job: running, success or failed. A question that finds no answer is asked again.
said=$(kubectl get job "$1" --ignore-not-found --output=jsonpath='{.metadata.name} {.status.conditions[*].type}') ||
  { echo running; exit; }
case "$said" in
  *Complete*) echo success ;;
  "" | *Fail*) echo failed ;;
  *) echo running ;;
esac
