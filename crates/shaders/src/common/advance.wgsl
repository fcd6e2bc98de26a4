// How sampling moves the session on; `State::advance` and `State::refuse` are the Rust side. For one invocation.

fn is_stop_id(token: u32) -> bool {
    for (var i = 0u; i < min(state.n_stop_ids, 16u); i += 1u) {
        if (state.stop_ids[i / 4u][i % 4u] == token) {
            return true;
        }
    }
    return false;
}

// The logits are not usable.
fn refuse() {
    state.done = 2u;
    state.n_tokens = 0u;
}

// `token` was sampled: it is the only one of the next step, unless it ends the session.
fn advance(token: u32) {
    state.step += 1u;
    state.position += state.n_tokens;
    if (is_stop_id(token)) {
        state.done = 1u;
        state.n_tokens = 0u;
    } else {
        state.n_tokens = 1u;
    }
}
