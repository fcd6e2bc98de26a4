"""Writes tests/golden/kivi/groups.json: groups of 32 values quantised to 4 bits by numpy.

    python3 tools/kivi/groups.py > tests/golden/kivi/groups.json

Independent of the engine's code: f32 arithmetic and the conversion to half are numpy's. Values are
written as the integers of their bits. The rules are those of crates/shaders/src/kernels/kivi.rs:
m = half(min), s = half((max - min) / 15) or 0, code = clamp(floor((x - m) / s + 0.5), 0, 15).
"""

import json

import numpy as np

F32 = np.float32


def quantise(x):
    low, high = x.min(), x.max()
    m = np.float16(np.clip(low, F32(-65504), F32(65504)))
    s = np.float16(0)
    if high != low:
        s = np.float16(np.clip((high - low) / F32(15), F32(2.0**-14), F32(65504)))
    inverse = F32(1) / F32(s) if s else F32(0)
    steps = np.floor((x - F32(m)) * inverse + F32(0.5))
    codes = np.clip(steps, 0, 15).astype(np.uint32)
    return m, s, codes, F32(s) * codes.astype(F32) + F32(m)


def main():
    ramp = np.arange(32)
    random = np.random.default_rng(1)
    groups = {
        "ramp from -1 to 1": -1 + 2 * ramp / 31,
        "all equal": np.full(32, 0.7),
        "all zero": np.zeros(32),
        "range of 3e-8": 0.25 + 3e-8 * (ramp % 2),
        "range below the smallest scale": 1e-5 * ramp / 31,
        "minimum that is a subnormal half": 3e-5 + ramp * 1e-3,
        "minimum that rounds up": -1.0004 + ramp * 0.01,
        "beyond the largest half": 7e4 * (2 * ramp / 31 - 1),
        "one outlier": np.where(ramp == 9, 100.0, 0.01 * ramp),
    }
    for scale in [1e-3, 0.05, 1.0, 8.0, 300.0]:
        for i in range(6):
            groups[f"normal {i} times {scale}"] = random.normal(size=32) * scale
            groups[f"shifted {i} times {scale}"] = (random.random(32) + random.normal() * 5) * scale
    out = []
    for name, values in groups.items():
        x = values.astype(F32)
        m, s, codes, decoded = quantise(x)
        out.append({
            "name": name,
            "values": x.view(np.uint32).tolist(),
            "scale": int(s.view(np.uint16)),
            "min": int(m.view(np.uint16)),
            "codes": codes.tolist(),
            "decoded": decoded.view(np.uint32).tolist(),
        })
    print("[")
    print(",\n".join(json.dumps(group) for group in out))
    print("]")


if __name__ == "__main__":
    main()
