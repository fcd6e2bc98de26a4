// The ids of the 20 largest logits of a share, the smaller id first among equals.
// One workgroup per share; each round finds the next.

struct Params {
    n_valid: u32,
    share: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read_write> candidates: array<u32>;

// Key and id; the key is 0 where there is nothing.
var<workgroup> found: array<vec2u, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let share = linear_workgroup(group, count);
    if (state.n_tokens == 0u) {
        return;
    }
    let end = min((share + 1u) * params.share, params.n_valid);
    var last = vec2u(0xffffffffu, 0u);
    for (var round = 0u; round < 20u; round += 1u) {
        var best = vec2u(0u, 0xffffffffu);
        for (var id = share * params.share + lane; id < end; id += 256u) {
            let key = order_key(bitcast<u32>(logits[id]));
            let is_left = key < last.x || (key == last.x && id > last.y);
            if (is_left && key > best.x) {
                best = vec2u(key, id);
            }
        }
        found[lane] = best;
        workgroupBarrier();
        for (var half = 128u; half > 0u; half /= 2u) {
            if (lane < half) {
                let a = found[lane];
                let b = found[lane + half];
                found[lane] = select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
            }
            workgroupBarrier();
        }
        last = found[0];
        if (lane == 0u) {
            candidates[share * 20u + round] = last.y;
        }
        workgroupBarrier();
    }
}
