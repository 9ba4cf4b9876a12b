// A GPT-2 or Llama language model in plain JavaScript, read from the files that Python reads: config.json and
// model.safetensors. Every number here is held to PyTorch's by tests/test_tinker.py.
//
//   const model = twotowers.loadModel(config, safetensorsBytes);
//   const seen = model.run(ids);                 seen.logits, seen.weights[layer][head * seen.n + position]
//   model.increases(seen, word)                  [layer * heads + head], nats, the final norm's scale frozen
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
  const SILU = (x) => x / (1 + Math.exp(-x));

  // ---- where the parts of the two architectures are ----
  function gpt2(config, tensor) {
    const d = config.n_embd, inner = config.n_inner || 4 * d;
    const map = (path, width) => ({
      weight: transposed(tensor(`${path}.weight`), width), bias: tensor(`${path}.bias`), width,
    });  // GPT-2 stores maps as (input, width)
    const norm = (path) => ({ gamma: tensor(`${path}.weight`), bias: tensor(`${path}.bias`) });
    if (config.activation_function !== "gelu_new") throw new Error("unknown activation");
    return {
      d, heads: config.n_head, keyHeads: config.n_head, dHead: d / config.n_head, context: config.n_positions,
      eps: config.layer_norm_epsilon, centred: true, act: GELU, theta: 0,
      embedding: tensor("transformer.wte.weight"), positions: tensor("transformer.wpe.weight"),
      norm: norm("transformer.ln_f"),
      layers: Array.from({ length: config.n_layer }, (_, i) => `transformer.h.${i}`).map((at) => ({
        norm1: norm(`${at}.ln_1`), qkv: map(`${at}.attn.c_attn`, 3 * d), out: map(`${at}.attn.c_proj`, d),
        norm2: norm(`${at}.ln_2`), up: map(`${at}.mlp.c_fc`, inner), down: map(`${at}.mlp.c_proj`, d),
      })),
    };
  }

  function llama(config, tensor) {
    const d = config.hidden_size, inner = config.intermediate_size, heads = config.num_attention_heads;
    const dHead = config.head_dim || d / heads, keyHeads = config.num_key_value_heads, rope = config.rope_parameters;
    const map = (path, width) => ({ weight: tensor(`${path}.weight`), width });
    const norm = (path) => ({ gamma: tensor(`${path}.weight`) });
    if (config.hidden_act !== "silu" || config.attention_bias || config.mlp_bias || rope.rope_type !== "default")
      throw new Error("unknown kind of Llama");
    return {
      d, heads, keyHeads, dHead, context: config.max_position_embeddings,
      eps: config.rms_norm_eps, centred: false, act: SILU, theta: rope.rope_theta,
      embedding: tensor("model.embed_tokens.weight"), norm: norm("model.norm"),
      layers: Array.from({ length: config.num_hidden_layers }, (_, i) => `model.layers.${i}`).map((at) => ({
        norm1: norm(`${at}.input_layernorm`),
        qkv: {
          weight: Float64Array.from([..."qkv"].flatMap((one) => [...tensor(`${at}.self_attn.${one}_proj.weight`)])),
          width: (heads + 2 * keyHeads) * dHead,
        },
        out: map(`${at}.self_attn.o_proj`, d), norm2: norm(`${at}.post_attention_layernorm`),
        gate: map(`${at}.mlp.gate_proj`, inner), up: map(`${at}.mlp.up_proj`, inner),
        down: map(`${at}.mlp.down_proj`, d),
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
          folded[w * d + i] = E[w * d + i] * gamma[i] - (this.centred ? mean : 0);
          if (bias) this.shift[w] += E[w * d + i] * bias[i];
        }
      }
      this.unembedding = { weight: folded, width: words };
    }

    // What a norm divides by, and the mean it takes off (0 for RMSNorm).
    scale(x, at = 0) {
      let mean = 0, square = 0;
      if (this.centred) for (let i = 0; i < this.d; i++) mean += x[at + i] / this.d;
      for (let i = 0; i < this.d; i++) square += (x[at + i] - mean) ** 2 / this.d;
      return [Math.sqrt(square + this.eps), mean];
    }

    normed(x, { gamma, bias }) {
      const out = new Float64Array(x.length);
      for (let at = 0; at < x.length; at += this.d) {
        const [scale, mean] = this.scale(x, at);
        for (let i = 0; i < this.d; i++) out[at + i] = ((x[at + i] - mean) / scale) * gamma[i] + (bias ? bias[i] : 0);
      }
      return out;
    }

    // Rotary positions: the first half of a head is turned with the second.
    turn(x, at, position) {
      const half = this.dHead / 2;
      for (let i = 0; i < half; i++) {
        const angle = position / this.theta ** (i / half), cos = Math.cos(angle), sin = Math.sin(angle);
        const a = x[at + i], b = x[at + i + half];
        x[at + i] = a * cos - b * sin;
        x[at + i + half] = b * cos + a * sin;
      }
    }

    // One forward pass. `edits`: "layer-head" -> {scale}, at all positions, or {instead}, a vector of d_head numbers
    // that is fed to W_O at the last position. Positions that begin as in `before`, a run under equal edits, are taken
    // from it. Kept of each layer: its input, keys and values at all positions, weights and z at the last.
    run(ids, edits = {}, before = null) {
      const { d, heads, keyHeads, dHead, layers } = this, n = ids.length, width = (heads + 2 * keyHeads) * dHead;
      let first = 0;
      while (before && first < Math.min(n, before.n) - 1 && before.ids[first] === ids[first]) first++;
      const seen = { n, ids, inputs: [], qkv: [], weights: [], z: [] };
      let x = new Float64Array((n - first) * d);
      ids.slice(first).forEach((id, r) => {
        for (let i = 0; i < d; i++)
          x[r * d + i] = this.embedding[id * d + i] + (this.positions ? this.positions[(first + r) * d + i] : 0);
      });
      layers.forEach((layer, l) => {
        const joined = (kept, rows, wide) => {
          if (!first) return rows;
          const all = new Float64Array(n * wide);
          all.set(kept[l].subarray(0, first * wide));
          all.set(rows, first * wide);
          return all;
        };
        const fresh = linear(this.normed(x, layer.norm1), n - first, layer.qkv);
        for (let r = 0; this.theta && r < n - first; r++)
          for (let h = 0; h < heads + keyHeads; h++) this.turn(fresh, r * width + h * dHead, first + r);
        seen.inputs.push(joined(before?.inputs, x, d));
        seen.qkv.push(joined(before?.qkv, fresh, width));
        // Of the last layer only the last position is read.
        const from = l === layers.length - 1 ? n - 1 : first;
        const { z, weights } = this.attend(seen.qkv[l], from, n);
        for (let h = 0; h < heads; h++) this.edit(z, h, edits[`${l}-${h}`]);
        seen.weights.push(weights);
        seen.z.push(z.slice(-heads * dHead));
        x = add(x.subarray((from - first) * d), linear(z, n - from, layer.out));
        x = add(x, this.feed(layer, this.normed(x, layer.norm2), n - from));
      });
      seen.final = x.slice(-d);
      seen.scale = this.scale(seen.final)[0];
      seen.logits = linear(seen.final, 1, this.unembedding).map((value, w) => value / seen.scale + this.shift[w]);
      return seen;
    }

    // What each head feeds to W_O at positions `from` and later; attention weights of the last one.
    attend(qkv, from, n) {
      const { heads, keyHeads, dHead } = this, width = (heads + 2 * keyHeads) * dHead;
      const z = new Float64Array((n - from) * heads * dHead), weights = new Float64Array(heads * n);
      for (let p = from; p < n; p++) {
        for (let h = 0; h < heads; h++) {
          const shared = Math.floor((h * keyHeads) / heads), q = p * width + h * dHead, row = new Float64Array(p + 1);
          for (let j = 0; j <= p; j++) {
            const k = j * width + (heads + shared) * dHead;
            for (let i = 0; i < dHead; i++) row[j] += (qkv[q + i] * qkv[k + i]) / Math.sqrt(dHead);
          }
          const all = logSumExp(row), to = ((p - from) * heads + h) * dHead;
          for (let j = 0; j <= p; j++) {
            const weight = Math.exp(row[j] - all), v = j * width + (heads + keyHeads + shared) * dHead;
            for (let i = 0; i < dHead; i++) z[to + i] += weight * qkv[v + i];
            if (p === n - 1) weights[h * n + j] = weight;
          }
        }
      }
      return { z, weights };
    }

    edit(z, head, how) {
      const { heads, dHead } = this, last = z.length - (heads - head) * dHead;
      for (let at = head * dHead; how && !how.instead && at < z.length; at += heads * dHead)
        for (let i = 0; i < dHead; i++) z[at + i] *= how.scale;
      if (how?.instead) z.set(how.instead, last);
    }

    feed({ gate, up, down }, x, rows) {
      const inner = linear(x, rows, up), gates = gate ? linear(x, rows, gate) : inner;
      for (let i = 0; i < inner.length; i++) inner[i] = this.act(gates[i]) * (gate ? inner[i] : 1);
      return linear(inner, rows, down);
    }

    // What heads add to the residual stream: W_O of each head times what it is fed, one row a head.
    written(layer, fed) {
      const { heads, dHead, d } = this, { weight } = this.layers[layer].out;
      const rows = new Float64Array(fed.length * heads * dHead);
      fed.forEach(([head, z], r) => rows.set(z, (r * heads + head) * dHead));
      return linear(rows, fed.length, { weight, width: d });
    }

    // Increase of log p(word) by every head, added alone to what enters its layer (paper, section 3.1); nats.
    increases(seen, word) {
      const { d, heads, dHead, layers, unembedding } = this, words = unembedding.width, size = (heads + 1) * d;
      const rows = new Float64Array(layers.length * size);  // of each layer: its input, then that with each head
      layers.forEach((_, l) => {
        const fed = Array.from({ length: heads }, (_, h) => [h, seen.z[l].subarray(h * dHead, (h + 1) * dHead)]);
        const base = this.key(seen, l, seen.n - 1);
        rows.set(this.written(l, fed), l * size + d);
        for (let i = 0; i < size; i++) rows[l * size + i] += base[i % d];
      });
      const projected = linear(rows, layers.length * (heads + 1), unembedding);
      const log = (row) => {
        const bs = projected.subarray(row * words, (row + 1) * words);
        return bs[word] / seen.scale - logSumExp(bs, seen.scale);
      };
      return Float64Array.from(layers.flatMap((_, l) => {
        const at = l * (heads + 1), base = log(at);
        return Array.from({ length: heads }, (_, h) => log(at + 1 + h) - base);
      }));
    }

    // W_O W_V norm(x) at a position: what a head would write if it looked there only.
    value(seen, layer, head, position) {
      const { heads, keyHeads, dHead } = this, at = position * (heads + 2 * keyHeads) * dHead;
      const v = at + (heads + keyHeads + Math.floor((head * keyHeads) / heads)) * dHead;
      return this.written(layer, [[head, seen.qkv[layer].subarray(v, v + dHead)]]);
    }

    // What the keys of a layer are made from: its input at a position.
    key(seen, layer, position) {
      return seen.inputs[layer].subarray(position * this.d, (position + 1) * this.d);
    }

    // Ids of the highest bs-values of each vector; their order does not depend on the norm's scale.
    topWords(vectors, k) {
      const { d, unembedding } = this, words = unembedding.width, rows = new Float64Array(vectors.length * d);
      vectors.forEach((vector, r) => rows.set(vector, r * d));
      const projected = linear(rows, vectors.length, unembedding);
      return vectors.map((_, r) => top(projected.subarray(r * words, (r + 1) * words), k));
    }
  }

  function add(x, y) {
    const out = new Float64Array(x.length);
    for (let i = 0; i < x.length; i++) out[i] = x[i] + y[i];
    return out;
  }

  function top(values, k) {
    const best = [];
    for (let id = 0; id < values.length; id++) {
      if (best.length === k && values[id] <= values[best[k - 1]]) continue;
      let at = best.length;
      while (at && values[best[at - 1]] < values[id]) at--;
      best.splice(at, 0, id);
      best.length = Math.min(best.length, k);
    }
    return best;
  }

  function loadModel(config, weights) {
    const parts = { gpt2, llama }[config.model_type];
    if (!parts || config.tie_word_embeddings === false) throw new Error(`unknown model type ${config.model_type}`);
    return new Model(parts(config, readSafetensors(weights)));
  }

  window.twotowers = { loadModel, logSumExp, top };
})();
