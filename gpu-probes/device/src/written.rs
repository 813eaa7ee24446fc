//! What helpers write to memory.

use xputrace_bytecode::helper as id;

use crate::value::Value;

/// Bytes that `name_text` writes at most; no stack and no value of a map that handlers use has more.
pub(crate) const MAX_NAME_BYTES: u64 = 512;

/// Returns what a helper writes: the argument that holds the address, and the bytes there.
pub(crate) fn writes(helper: i32, args: [Value; 6]) -> Vec<(u8, usize)> {
    match helper {
        id::NAME_TEXT => {
            let n_bytes = args[3].scalar().known.unwrap_or(0).min(MAX_NAME_BYTES);
            vec![(2, n_bytes as usize)]
        }
        id::GET_BLOCK_IDX | id::GET_BLOCK_DIM | id::GET_THREAD_IDX | id::GET_GRID_DIM => {
            (1..=3).map(|arg| (arg, size_of::<u64>())).collect()
        }
        id::RAISE => vec![(1, size_of::<u64>())],
        _ => Vec::new(),
    }
}
