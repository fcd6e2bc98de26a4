// out[t, i] = SiLU(gate[t, i]) * up[t, i], SiLU(x) = x * sigmoid(x). One invocation per element.

struct Params {
    cols: u32,
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> state: State;
@group(0) @binding(2) var<storage, read> gate_up: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3u,
    @builtin(num_workgroups) count: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = linear_workgroup(id, count) * 64u + lane;
    if (i < min(state.n_tokens, params.rows) * params.cols) {
        let row = i / params.cols;
        let gate = gate_up[i + row * params.cols];
        out[i] = gate * sigmoid(gate) * gate_up[i + (row + 1u) * params.cols];
    }
}
