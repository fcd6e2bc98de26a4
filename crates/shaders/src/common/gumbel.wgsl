// Perturbed scores, whose largest is a draw from the softmax; sampling.rs is the Rust side.

// Where the random bits come from; read once, for all ids.
struct Noise {
    is_random: bool,
    seed: vec2u,
    position: u32,
}

fn noise_at(position: u32) -> Noise {
    return Noise(settings[IS_RANDOM] != 0u, vec2u(settings[SEED], settings[SEED + 1u]), position);
}

// First word of pcg4d (Jarzynski and Olano, Hash Functions for GPU Rendering, 2020).
fn random_bits(id: u32, noise: Noise) -> u32 {
    var v = vec4u(id, noise.position, noise.seed);
    v = v * 1664525u + 1013904223u;
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    v = v ^ (v >> vec4u(16u));
    v.x += v.y * v.w;
    return v.x;
}

// -ln(-ln(1 - u)), u uniform in (0, 1) with 24 significant bits at any size.
fn gumbel(bits: u32) -> f32 {
    let kept = select(bits & 0xffffff00u, bits, bits < 0x1000000u);
    let u = (f32(kept) + 0.5) * 2.3283064365386963e-10;
    // log() is too coarse next to 1.
    var exponential = u * (1.0 + u * (1.0 / 2.0 + u * (1.0 / 3.0 + u * (1.0 / 4.0 + u * (1.0 / 5.0 + u / 6.0)))));
    if (u >= 0.0625) {
        exponential = -log(1.0 - u);
    }
    return -log(exponential);
}

fn perturbed(distance: f32, id: u32, noise: Noise) -> f32 {
    if (!noise.is_random) {
        return -distance;
    }
    return gumbel(random_bits(id, noise)) - distance;
}
