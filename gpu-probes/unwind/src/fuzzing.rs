//! For the fuzzer alone: the reader of a file's tables, over bytes that no loader has mapped.

use crate::Registers;
use crate::objects::NO_OBJECT;
use crate::tables::read;

/// Reads the row of an address, which is counted from the beginning of these bytes: `.eh_frame_hdr`, and behind it `.eh_frame`.
pub fn row(bytes: &[u8], address: i64) {
    let start = bytes.as_ptr() as u64;
    let end = start + bytes.len() as u64;
    let mut object = NO_OBJECT;
    (object.start, object.end, object.header, object.header_end) = (start, end, start, end);
    let Ok(rule) = read(&object, start.wrapping_add_signed(address)) else { return };
    let registers = Registers { rip: start, rsp: u64::MAX - 7, saved: [u64::MAX; crate::SAVED] };
    let _ = (rule.cfa(&registers), rule.reads(), rule.step());
    for at in 0..crate::SAVED {
        let _ = rule.slot(at, &registers, 8);
    }
}
