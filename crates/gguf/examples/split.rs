//! Splits a GGUF file by tensors: `cargo run -p signbit-gguf --example split -- FILE PARTS PREFIX`
//! writes `PREFIX-00001-of-0000N.gguf` and so on. Makes the split model of the browser tests.

use std::error::Error;

use signbit_gguf::split::part_name;
use signbit_gguf::{GgufWriter, Header};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, parts, prefix] = args.as_slice() else {
        return Err("usage: split FILE PARTS PREFIX".into());
    };
    let count: u32 = parts.parse()?;
    let bytes = std::fs::read(file)?;
    let header = Header::parse_file(&bytes)?;
    let per_part = header.tensors.len().div_ceil(count.max(1) as usize);
    for (index, tensors) in (0..count).zip(header.tensors.chunks(per_part.max(1))) {
        let mut writer = GgufWriter::new();
        for (key, value) in header.metadata.iter().filter(|_| index == 0) {
            writer.set(key, value.clone());
        }
        writer.set("split.no", u16::try_from(index)?).set("split.count", u16::try_from(count)?);
        writer.set("split.tensors.count", i32::try_from(header.tensors.len())?);
        for tensor in tensors {
            let start = usize::try_from(header.data_start + tensor.offset)?;
            let data = bytes.get(start..start + usize::try_from(tensor.n_bytes)?).ok_or("truncated file")?;
            writer.tensor(&tensor.name, &tensor.shape, tensor.ty, data.to_vec());
        }
        std::fs::write(part_name(prefix, index, count), writer.finish())?;
    }
    Ok(())
}
