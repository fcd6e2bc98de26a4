// The device-side state of a session; `State` in kernel.rs is its Rust side.
struct State {
    // Position of the first token of this step, which is also its row in the KV cache.
    position: u32,
    // Rows this step computes. Zero once `done` is set, which makes every kernel a no-op.
    n_tokens: u32,
    // 0 running, 1 a stop id was sampled, 2 the logits were not usable.
    done: u32,
    // Tokens sampled since the generation began.
    step: u32,
    n_stop_ids: u32,
    pad0: u32,
    pad1: u32,
    pad2: u32,
    stop_ids: array<vec4u, 4>,
}
