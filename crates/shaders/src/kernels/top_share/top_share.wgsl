// The ids of the 20 largest logits of a share, the smaller id first among equals.
// One workgroup per share: each round the invocation that had the largest looks for its next.

struct Params {
    n_valid: u32,
    share: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read_write> candidates: array<u32>;

// Key and id; the key is 0 where there is nothing.
var<workgroup> found: array<vec2u, 64>;
var<workgroup> largest: vec2u;

fn is_before(a: vec2u, b: vec2u) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

@compute @workgroup_size(64)
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
    var best = last;
    for (var round = 0u; round < 20u; round += 1u) {
        if (all(best == last)) {
            best = vec2u(0u, 0xffffffffu);
            for (var id = share * params.share + lane; id < end; id += 64u) {
                let entry = vec2u(order_key(bitcast<u32>(logits[id])), id);
                if (is_before(last, entry) && is_before(entry, best)) {
                    best = entry;
                }
            }
            found[lane] = best;
        }
        workgroupBarrier();
        if (lane == 0u) {
            last = found[0];
            for (var i = 1u; i < 64u; i += 1u) {
                if (is_before(found[i], last)) {
                    last = found[i];
                }
            }
            largest = last;
            candidates[share * 20u + round] = last.y;
        }
        last = workgroupUniformLoad(&largest);
    }
}
