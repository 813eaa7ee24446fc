//! Reads which lines of the source an object's code came from: `.BTF.ext`.
//!
//! Source: Linux's Documentation/bpf/btf.rst, ".BTF.ext section".

use std::collections::BTreeMap;
use std::ops::Range;

use super::types::{Types, Words};
use super::{COLUMN_BITS, INSN_BYTES};
use crate::image::Line;

/// Lines of one source file. A longer file's last lines have no text.
const MOST_LINES: u32 = 1 << 17;
/// Bytes of `struct bpf_line_info`; records may be longer.
const RECORD_BYTES: u32 = 16;

/// The lines of an object's code.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// By section: the slot where each begins.
    sections: BTreeMap<String, Vec<Line>>,
    /// Names of source files, and their lines by number.
    files: Vec<(String, BTreeMap<u32, String>)>,
}

impl Lines {
    /// Reads the contents of `.BTF.ext`; there are no lines in no bytes.
    ///
    /// # Errors
    /// They are cut off; or the code has relocations of fields (CO-RE), without which it would read something else.
    pub(super) fn parse(ext: &[u8], types: &Types) -> Result<Lines, String> {
        let mut lines = Lines::default();
        if ext.is_empty() {
            return Ok(lines);
        }
        let mut header = Words { data: ext };
        let [_magic, header_bytes, _functions, _functions_bytes, lines_at, lines_bytes] = header.words()?;
        let has_fields = header_bytes >= 32 && { header.words::<2>()? }[1] > 4;
        if has_fields {
            return Err("it reads fields of Linux's structs by name (CO-RE), which is not supported".into());
        }
        let start = header_bytes as usize + lines_at as usize;
        let data = ext.get(start..start + lines_bytes as usize).ok_or("`.BTF.ext` is cut off")?;
        if data.is_empty() {
            return Ok(lines);
        }
        let mut words = Words { data };
        let rest = match words.words()? {
            [bytes] if bytes >= RECORD_BYTES && bytes.is_multiple_of(4) => (bytes - RECORD_BYTES) / 4,
            [bytes] => return Err(format!("`.BTF.ext` has records of {bytes} bytes for lines")),
        };
        while !words.data.is_empty() {
            let [section, n_records] = words.words()?;
            let section = types.string(section)?;
            for _ in 0..n_records {
                let record = words.words()?;
                words.skip(rest)?;
                lines.add(&section, record, types)?;
            }
        }
        lines.sections.values_mut().for_each(|it| it.sort_by_key(|line| line.insn));
        Ok(lines)
    }

    fn add(&mut self, section: &str, [offset, file, text, place]: [u32; 4], types: &Types) -> Result<(), String> {
        let (name, text) = (types.string(file)?, types.string(text)?);
        let (line, column) = (place >> COLUMN_BITS, place & ((1 << COLUMN_BITS) - 1));
        if line == 0 {
            return Ok(()); // Made by the compiler: it counts as part of the line before.
        }
        let file = self.files.iter().position(|it| it.0 == name).unwrap_or_else(|| {
            self.files.push((name, BTreeMap::new()));
            self.files.len() - 1
        });
        self.files[file].1.insert(line, text);
        let line = Line { insn: offset as usize / INSN_BYTES, file, line, column };
        self.sections.entry(section.to_owned()).or_default().push(line);
        Ok(())
    }

    /// Returns the lines of these slots of a section, as those of a program whose slot `start` is the first of them.
    pub(super) fn within(&self, section: &str, slots: &Range<usize>, start: usize) -> Vec<Line> {
        let all = self.sections.get(section).map(Vec::as_slice).unwrap_or_default();
        let within = all.iter().filter(|it| slots.contains(&it.insn));
        within.map(|it| Line { insn: it.insn - slots.start + start, ..*it }).collect()
    }

    /// Returns name and text of each file.
    pub(super) fn sources(&self) -> Vec<(String, String)> {
        self.files.iter().map(|(name, lines)| (name.clone(), text(lines))).collect()
    }
}

fn text(lines: &BTreeMap<u32, String>) -> String {
    let last = lines.keys().next_back().copied().unwrap_or(0).min(MOST_LINES);
    (1..=last).map(|it| format!("{}\n", lines.get(&it).map_or("", String::as_str))).collect()
}
