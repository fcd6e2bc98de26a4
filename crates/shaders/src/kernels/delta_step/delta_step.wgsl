// One token of a gated DeltaNet layer, from its projections to the input of the last one:
//     a[c] = SiLU(sum_j conv[c, j] * u[position - taps + 1 + j, c])            for q, k and v
//     q    = a_q / (|a_q| sqrt(dk)),   k = a_k / |a_k|                         per head, |x|^2 = sum(x^2) + eps
//     S    = e^g S,   d = sigmoid(beta) (v - S^T k),   S = S + k d^T,   o = S^T q
//     out  = o * norm / sqrt(mean(o^2) + eps) * SiLU(z)
// One workgroup per value head j, which reads key head j % Hk. Its 64 invocations stride over the
// columns of S; neighbours read neighbouring elements of a row. The factors of q and k are taken
// out of the sums.
//
// The ring holds the inputs of the last positions, position p in row p % 4. In this step rows
// other than position % 4 are read and that one is written, by the first head that has the channel.

struct Params {
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    // 2 to 4.
    taps: u32,
    channels: u32,
    eps: f32,
    pad: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
// The channels of u, then z, alpha and beta.
@group(0) @binding(2) var<storage, read> projected: array<f32>;
@group(0) @binding(3) var<storage, read> conv: array<f32>;
@group(0) @binding(4) var<storage, read> ssm_a: array<f32>;
@group(0) @binding(5) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(6) var<storage, read> norm: array<f32>;
@group(0) @binding(7) var<storage, read_write> ring: array<f32>;
@group(0) @binding(8) var<storage, read_write> s: array<f32>;
@group(0) @binding(9) var<storage, read_write> out: array<f32>;

// Queries in x and keys in y, before their norms.
var<workgroup> query_key: array<vec2f, 512>;
var<workgroup> head_out: array<f32, 512>;
// Squares of each invocation's queries and keys, and of its outputs.
var<workgroup> key_squares: array<vec2f, 64>;
var<workgroup> out_squares: array<f32, 64>;

// Convolution and SiLU of a channel; `is_owner` also puts its input into the ring.
fn convolve(channel: u32, is_owner: bool) -> f32 {
    let now = projected[channel];
    let last = params.taps - 1u;
    var sum = conv[channel * params.taps + last] * now;
    for (var j = 0u; j < last; j += 1u) {
        let row = (state.position + 4u - last + j) & 3u;
        sum += conv[channel * params.taps + j] * ring[row * params.channels + channel];
    }
    if (is_owner) {
        ring[(state.position & 3u) * params.channels + channel] = now;
    }
    return sum * sigmoid(sum);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = linear_workgroup(id, count);
    if (state.n_tokens == 0u || head >= params.value_heads) {
        return;
    }
    let key_dim = params.key_dim;
    let value_dim = params.value_dim;
    let n_keys = params.key_heads * key_dim;
    let key_head = head % params.key_heads;

    var own_squares = vec2f(0.0);
    for (var i = lane; i < key_dim; i += 64u) {
        let channel = key_head * key_dim + i;
        let pair = vec2f(convolve(channel, head == key_head), convolve(n_keys + channel, head == key_head));
        query_key[i] = pair;
        own_squares += pair * pair;
    }
    key_squares[lane] = own_squares;
    workgroupBarrier();
    var total = vec2f(0.0);
    for (var i = 0u; i < min(key_dim, 64u); i += 1u) {
        total += key_squares[i];
    }
    let query_factor = 1.0 / (sqrt(total.x + params.eps) * sqrt(f32(key_dim)));
    let key_factor = 1.0 / sqrt(total.y + params.eps);

    let z = params.channels + head * value_dim;
    let alpha = params.channels + params.value_heads * value_dim + head;
    let decay = exp(ssm_a[head] * softplus(projected[alpha] + dt_bias[head]));
    let strength = sigmoid(projected[alpha + params.value_heads]);
    let by_four = key_dim & ~3u;

    var square = 0.0;
    for (var c = lane; c < value_dim; c += 64u) {
        let v = convolve(2u * n_keys + head * value_dim + c, true);
        // Element (i, c) of the head's state is at first + i * value_dim.
        let first = head * key_dim * value_dim + c;
        var recalled = 0.0;
        for (var i = 0u; i < by_four; i += 4u) {
            let at = first + i * value_dim;
            recalled += s[at] * query_key[i].y + s[at + value_dim] * query_key[i + 1u].y;
            recalled += s[at + 2u * value_dim] * query_key[i + 2u].y + s[at + 3u * value_dim] * query_key[i + 3u].y;
        }
        for (var i = by_four; i < key_dim; i += 1u) {
            recalled += s[first + i * value_dim] * query_key[i].y;
        }
        // One key factor for the reading with k here, another for the writing of k below.
        let d = key_factor * strength * (v - decay * key_factor * recalled);

        var sum = 0.0;
        for (var i = 0u; i < by_four; i += 4u) {
            let at = first + i * value_dim;
            let a = query_key[i];
            let b = query_key[i + 1u];
            let e = query_key[i + 2u];
            let f = query_key[i + 3u];
            let row_a = decay * s[at] + a.y * d;
            let row_b = decay * s[at + value_dim] + b.y * d;
            let row_e = decay * s[at + 2u * value_dim] + e.y * d;
            let row_f = decay * s[at + 3u * value_dim] + f.y * d;
            s[at] = row_a;
            s[at + value_dim] = row_b;
            s[at + 2u * value_dim] = row_e;
            s[at + 3u * value_dim] = row_f;
            sum += (row_a * a.x + row_b * b.x) + (row_e * e.x + row_f * f.x);
        }
        for (var i = by_four; i < key_dim; i += 1u) {
            let at = first + i * value_dim;
            let element = decay * s[at] + query_key[i].y * d;
            s[at] = element;
            sum += element * query_key[i].x;
        }
        let o = query_factor * sum;
        head_out[c] = o;
        square += o * o;
    }
    out_squares[lane] = square;
    workgroupBarrier();
    var total_square = 0.0;
    for (var i = 0u; i < min(value_dim, 64u); i += 1u) {
        total_square += out_squares[i];
    }
    let out_factor = 1.0 / sqrt(total_square / f32(value_dim) + params.eps);
    for (var c = lane; c < value_dim; c += 64u) {
        let gate = projected[z + c];
        out[head * value_dim + c] = head_out[c] * out_factor * norm[c] * (gate * sigmoid(gate));
    }
}
