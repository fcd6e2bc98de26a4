// How long a repetition each token would continue. Invocation j looks at position j of the ledger: the longest run
// of ids that ends before j and equals the end of the ledger is what ledger[j] would continue.
// One invocation per position of the context.

struct Params {
    ledger: u32,
    context: u32,
    breakers: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> settings: array<u32>;
@group(0) @binding(3) var<storage, read> history: array<u32>;
@group(0) @binding(4) var<storage, read_write> repeats: array<atomic<u32>>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let position = linear_workgroup(id, count) * 64u + lane;
    let end = min(state.position + state.n_tokens, params.context);
    let start = end - min(settings[DRY_LAST_N], end);
    // The token before must be a generated one: a prompt may repeat itself.
    if (state.n_tokens == 0u || settings[HAS_DRY] == 0u || position >= end || position <= max(settings[FIRST_GENERATED], start)) {
        return;
    }
    var length = 0u;
    while (length < MAX_MATCH && position - length > start) {
        let token = history[params.ledger + end - 1u - length];
        if (token != history[params.ledger + position - 1u - length] || has_id(params.breakers, token)) {
            break;
        }
        length += 1u;
    }
    if (length > 0u) {
        atomicMax(&repeats[history[params.ledger + position]], length);
    }
}
