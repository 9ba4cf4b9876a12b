// A GPT-2 language model in plain JavaScript, read from the files that Python reads: config.json and
// model.safetensors. Every number here is held to PyTorch's by tests/test_playground_engine.py.
//
//   const model = twotowers.loadModel(config, safetensorsBytes);
//   const seen = model.run(ids);                 seen.logits, seen.weights[layer][head * seen.n + position]
//   model.differences(seen, word, other)         [layer * heads + head], nats, the final norm's scale frozen
//   model.increases(seen, word)                  the same, of the paper's increase of log-probability
(() => {
  // ---- files ----
  function readSafetensors(bytes) {
    const start = 8 + Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
    return (name) => {
      const { dtype, data_offsets: [from, to] } = header[name] || { data_offsets: [] };
      if (dtype !== "F32") throw new Error(`the weights hold no float32 tensor ${name}`);
      // Widened: arithmetic in JavaScript is in float64, and narrowing every result would take half of the time.
      return Float64Array.from(new Float32Array(bytes.slice(start + from, start + to).buffer));
    };
  }

  // ---- arithmetic: x has `rows` rows; a map is {weight: (width, input), bias, width} ----
  // Two outputs of four rows at a time: so each number that is loaded is used more than once. The last ones are made
  // again where rows or outputs run out.
  function linear(x, rows, { weight, bias, width }) {
    const depth = weight.length / width, out = new Float64Array(rows * width);
    for (let r = 0; r < rows; r += 4) {
      const r1 = Math.min(r + 1, rows - 1), r2 = Math.min(r + 2, rows - 1), r3 = Math.min(r + 3, rows - 1);
      const x0 = r * depth, x1 = r1 * depth, x2 = r2 * depth, x3 = r3 * depth;
      for (let o = 0; o < width; o += 2) {
        const n = Math.min(o + 1, width - 1), v = o * depth, w = n * depth;
        const m = bias ? bias[o] : 0, k = bias ? bias[n] : 0;
        let a0 = m, a1 = m, a2 = m, a3 = m, b0 = k, b1 = k, b2 = k, b3 = k;
        for (let i = 0; i < depth; i++) {
          const s = weight[v + i], t = weight[w + i], p = x[x0 + i], q = x[x1 + i], y = x[x2 + i], z = x[x3 + i];
          a0 += s * p; a1 += s * q; a2 += s * y; a3 += s * z;
          b0 += t * p; b1 += t * q; b2 += t * y; b3 += t * z;
        }
        out[r * width + o] = a0; out[r1 * width + o] = a1; out[r2 * width + o] = a2; out[r3 * width + o] = a3;
        out[r * width + n] = b0; out[r1 * width + n] = b1; out[r2 * width + n] = b2; out[r3 * width + n] = b3;
      }
    }
    return out;
  }

  function transposed(weight, width) {
    const height = weight.length / width, out = new Float64Array(weight.length);
    for (let i = 0; i < height; i++) for (let j = 0; j < width; j++) out[j * height + i] = weight[i * width + j];
    return out;
  }

  function logSumExp(x, divisor = 1) {
    let top = -Infinity, sum = 0;
    for (let i = 0; i < x.length; i++) if (x[i] > top) top = x[i];
    for (let i = 0; i < x.length; i++) sum += Math.exp((x[i] - top) / divisor);
    return top / divisor + Math.log(sum);
  }

  const GELU = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));

  // ---- where the parts are ----
  function gpt2(config, tensor) {
    const d = config.n_embd, inner = config.n_inner || 4 * d;
    const map = (path, width) => ({
      weight: transposed(tensor(`${path}.weight`), width), bias: tensor(`${path}.bias`), width,
    });  // GPT-2 stores maps as (input, width)
    const norm = (path) => ({ gamma: tensor(`${path}.weight`), bias: tensor(`${path}.bias`) });
    if (config.activation_function !== "gelu_new") throw new Error("unknown activation");
    return {
      d, heads: config.n_head, dHead: d / config.n_head, context: config.n_positions, eps: config.layer_norm_epsilon,
      embedding: tensor("transformer.wte.weight"), positions: tensor("transformer.wpe.weight"),
      norm: norm("transformer.ln_f"),
      layers: Array.from({ length: config.n_layer }, (_, i) => `transformer.h.${i}`).map((at) => ({
        norm1: norm(`${at}.ln_1`), qkv: map(`${at}.attn.c_attn`, 3 * d), out: map(`${at}.attn.c_proj`, d),
        norm2: norm(`${at}.ln_2`), up: map(`${at}.mlp.c_fc`, inner), down: map(`${at}.mlp.c_proj`, d),
      })),
    };
  }

  // ---- the model ----
  class Model {
    constructor(parts) {
      Object.assign(this, parts);
      const { embedding: E, d, norm: { gamma, bias } } = this, words = E.length / d;
      const folded = new Float64Array(E.length);  // E times the final norm's weight, centred: what bs-values multiply
      this.shift = new Float64Array(words);  // what the norm's bias adds to the logits
      for (let w = 0; w < words; w++) {
        let mean = 0;
        for (let i = 0; i < d; i++) mean += (E[w * d + i] * gamma[i]) / d;
        for (let i = 0; i < d; i++) {
          folded[w * d + i] = E[w * d + i] * gamma[i] - mean;
          this.shift[w] += E[w * d + i] * bias[i];
        }
      }
      this.unembedding = { weight: folded, width: words };
    }

    // What a norm divides by, and the mean it takes off.
    scale(x, at = 0) {
      let mean = 0, square = 0;
      for (let i = 0; i < this.d; i++) mean += x[at + i] / this.d;
      for (let i = 0; i < this.d; i++) square += (x[at + i] - mean) ** 2 / this.d;
      return [Math.sqrt(square + this.eps), mean];
    }

    normed(x, { gamma, bias }) {
      const out = new Float64Array(x.length);
      for (let at = 0; at < x.length; at += this.d) {
        const [scale, mean] = this.scale(x, at);
        for (let i = 0; i < this.d; i++) out[at + i] = ((x[at + i] - mean) / scale) * gamma[i] + bias[i];
      }
      return out;
    }

    // One forward pass. `edits`: "layer-head" -> any of {scale}, at all positions; {instead}, d_head numbers that are
    // fed to W_O at the last position; {steering}, d_head numbers added to the last position's query (scaled: times a key
    // they are nats). Positions that begin as in `before`, a run under equal scales, are taken from it; the last never
    // is. Kept of each layer: its input, queries, keys and values at all positions, weights and z at the last.
    run(ids, edits = {}, before = null) {
      const { d, heads, dHead, layers } = this, n = ids.length;
      let first = 0;
      while (before && first < Math.min(n, before.n) - 1 && before.ids[first] === ids[first]) first++;
      const seen = { n, ids, inputs: [], qkv: [], weights: [], z: [] };
      let x = new Float64Array((n - first) * d);
      ids.slice(first).forEach((id, r) => {
        for (let i = 0; i < d; i++)
          x[r * d + i] = this.embedding[id * d + i] + this.positions[(first + r) * d + i];
      });
      layers.forEach((layer, l) => {
        const joined = (part, rows, wide) =>
          (first ? Float64Array.of(...before[part][l].subarray(0, first * wide), ...rows) : rows);
        const fresh = linear(this.normed(x, layer.norm1), n - first, layer.qkv);
        seen.inputs.push(joined("inputs", x, d));
        seen.qkv.push(joined("qkv", fresh, 3 * d));
        // Of the last layer only the last position is read.
        const from = l === layers.length - 1 ? n - 1 : first;
        const { z, weights } = this.attend(seen.qkv[l], from, n, (h) => edits[`${l}-${h}`]?.steering);
        for (let h = 0; h < heads; h++) this.edit(z, h, edits[`${l}-${h}`]);
        seen.weights.push(weights);
        seen.z.push(z.slice(-heads * dHead));
        const attended = linear(z, n - from, layer.out), middle = x.subarray((from - first) * d).map((v, i) => v + attended[i]);
        const fed = linear(linear(this.normed(middle, layer.norm2), n - from, layer.up).map(GELU), n - from, layer.down);
        x = middle.map((v, i) => v + fed[i]);
      });
      seen.final = x.slice(-d);
      seen.scale = this.scale(seen.final)[0];
      seen.logits = linear(seen.final, 1, this.unembedding).map((value, w) => value / seen.scale + this.shift[w]);
      return seen;
    }

    // Attention weights of one position in one head.
    look(qkv, head, p, steering = null) {
      const { dHead, d } = this, q = 3 * p * d + head * dHead, root = Math.sqrt(dHead);
      const query = qkv.slice(q, q + dHead), row = new Float64Array(p + 1);
      for (let i = 0; i < dHead; i++) query[i] = query[i] / root + (steering ? steering[i] : 0);
      for (let j = 0; j <= p; j++) {
        const k = (3 * j + 1) * d + head * dHead;
        for (let i = 0; i < dHead; i++) row[j] += query[i] * qkv[k + i];
      }
      const all = logSumExp(row);
      for (let j = 0; j <= p; j++) row[j] = Math.exp(row[j] - all);
      return row;
    }

    // What each head feeds to W_O at positions `from` and later; attention weights of the last one.
    attend(qkv, from, n, steering) {
      const { heads, dHead, d } = this;
      const z = new Float64Array((n - from) * heads * dHead), weights = new Float64Array(heads * n);
      for (let p = from; p < n; p++) {
        for (let h = 0; h < heads; h++) {
          const row = this.look(qkv, h, p, p === n - 1 ? steering(h) : null), to = ((p - from) * heads + h) * dHead;
          for (let j = 0; j <= p; j++) {
            const v = (3 * j + 2) * d + h * dHead;
            for (let i = 0; i < dHead; i++) z[to + i] += row[j] * qkv[v + i];
          }
          if (p === n - 1) weights.set(row, h * n);
        }
      }
      return { z, weights };
    }

    edit(z, head, how) {
      const { heads, dHead } = this, last = z.length - (heads - head) * dHead;
      for (let at = head * dHead; how?.scale !== undefined && at < z.length; at += heads * dHead)
        for (let i = 0; i < dHead; i++) z[at + i] *= how.scale;
      if (how?.instead) z.set(how.instead, last);
    }

    // What heads add to the residual stream: W_O of each head times what it is fed, one row a head.
    written(layer, fed) {
      const { heads, dHead, d } = this, { weight } = this.layers[layer].out;
      const rows = new Float64Array(fed.length * heads * dHead);
      fed.forEach(([head, z], r) => rows.set(z, (r * heads + head) * dHead));
      return linear(rows, fed.length, { weight, width: d });
    }

    fed(seen, layer) {
      const { heads, dHead } = this;
      return Array.from({ length: heads }, (_, h) => [h, seen.z[layer].subarray(h * dHead, (h + 1) * dHead)]);
    }

    // What some vectors of the residual stream, one after the other, add to the logit of one word minus that of another.
    difference(seen, vectors, word, other) {
      const { d, unembedding: { weight: E } } = this;
      return Array.from({ length: vectors.length / d }, (_, r) => {
        let sum = 0;
        for (let i = 0; i < d; i++) sum += vectors[r * d + i] * (E[word * d + i] - E[other * d + i]);
        return sum / seen.scale;
      });
    }

    // The same of every head; nats.
    differences(seen, word, other) {
      return this.layers.flatMap((_, l) => this.difference(seen, this.written(l, this.fed(seen, l)), word, other));
    }

    // The paper's increase of a word by every head: its log-probability once the head is added to the layer's input.
    increases(seen, word) {
      const { d, heads, unembedding } = this, words = unembedding.width;
      return this.layers.flatMap((_, l) => {
        const rows = new Float64Array((heads + 1) * d);
        rows.set(this.written(l, this.fed(seen, l)));
        rows.set(this.input(seen, l, seen.n - 1), heads * d);
        const bs = linear(rows, heads + 1, unembedding).map((x) => x / seen.scale), base = bs.subarray(heads * words);
        const logP = (x) => x[word] - logSumExp(x);
        return this.fed(seen, l).map(([h]) => logP(base.map((x, w) => x + bs[h * words + w])) - logP(base));
      });
    }

    // A head's query (scaled) or key at a position: what its two towers make.
    tower(seen, layer, head, part, position) {
      const { d, dHead } = this, at = (3 * position + (part === "key" ? 1 : 0)) * d + head * dHead;
      const scale = part === "key" ? 1 : Math.sqrt(dHead);
      return seen.qkv[layer].slice(at, at + dHead).map((x) => x / scale);
    }

    // W_O W_V norm(x) at a position: what a head would write if it looked there only.
    value(seen, layer, head, position) {
      const { d, dHead } = this, v = (3 * position + 2) * d + head * dHead;
      return this.written(layer, [[head, seen.qkv[layer].subarray(v, v + dHead)]]);
    }

    // What the queries, keys and values of a layer are made from.
    input(seen, layer, position) {
      return seen.inputs[layer].subarray(position * this.d, (position + 1) * this.d);
    }

    // Ids of the highest bs-values of each vector; their order does not depend on the norm's scale.
    topWords(vectors, k) {
      return vectors.map((vector) => top(linear(vector, 1, this.unembedding), k));
    }
  }

  const top = (values, k) => [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, k);

  function loadModel(config, weights) {
    if (config.model_type !== "gpt2" || config.tie_word_embeddings === false) throw new Error("this model is no GPT-2");
    return new Model(gpt2(config, readSafetensors(weights)));
  }

  window.twotowers = { loadModel, logSumExp, top };
})();
