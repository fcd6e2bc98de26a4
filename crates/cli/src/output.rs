//! Standard output: text, JSON and aligned tables. A closed pipe is an error value, not a panic.

use std::io::{self, Write};

use serde::Serialize;

use crate::error::CliError;

/// Writes text as it is and passes it on at once, so that a streamed answer appears as it comes.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Stdout)
}

/// Writes a line.
pub fn print_line(text: &str) -> Result<(), CliError> {
    print(&format!("{text}\n"))
}

/// Writes a value as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|e| CliError::Stdout(e.into()))?;
    print_line(&text)
}

/// Names and values in two columns.
pub fn facts(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// Columns as wide as their widest cell; those from `first_number` on are aligned to the right.
pub fn table(head: &[&str], rows: &[Vec<String>], first_number: usize) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let all = || std::iter::once(&head).chain(rows);
    let len = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let width = |column| all().map(|row| len(row, column)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in all() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < first_number { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes as people read it.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0);
    format!("{value:.digits$} {}", UNITS.get(unit).copied().unwrap_or_default())
}

/// A count as people read it.
pub fn count(n: u64) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1} thousand", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} million", n as f64 / 1e6),
        _ => format!("{:.2} billion", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let rows = [vec!["a".to_owned(), "12".to_owned()], vec!["long".to_owned(), "3".to_owned()]];
        assert_eq!(table(&["x", "number"], &rows, 1), "x     number\na         12\nlong       3\n");
        assert_eq!(facts(&[("a", "1".to_owned()), ("bcd", "2".to_owned())]), "a    1\nbcd  2\n");
    }

    #[test]
    fn numbers_are_readable() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            (u64::MAX, "16777216.0 TiB"),
        ];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
        for (n, text) in [(999, "999"), (1_500, "1.5 thousand"), (27_000_000_000, "27.00 billion")] {
            assert_eq!(count(n), text);
        }
    }
}
