//! The GPUs of this machine, and which of them the process sees.
//!
//! `SOFTGPU_DEVICES` says how many there are. `CUDA_VISIBLE_DEVICES` selects and orders them as NVIDIA's
//! driver does: numbers of the machine or beginnings of UUIDs, up to the first that names none.

use crate::abi::{Status, error};
use crate::forks::Lazy;

/// Maximum number of GPUs.
pub(crate) const MOST: usize = 16;

/// The UUID of the machine's first GPU; the last byte of the others' is higher.
const FIRST_UUID: [u8; 16] = *b"xputrace-softgpu";

/// Returns the GPUs that the process sees, by their numbers on the machine, in its order.
fn visible() -> &'static [usize] {
    static VISIBLE: Lazy<Vec<usize>> = Lazy::new();
    VISIBLE.get_or_make(|| {
        let count = std::env::var("SOFTGPU_DEVICES").ok().and_then(|it| it.parse().ok());
        let count = count.unwrap_or(1).clamp(1, MOST);
        match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(list) => selected(&list, count),
            Err(_) => (0..count).collect(),
        }
    })
}

/// Returns the GPUs that `CUDA_VISIBLE_DEVICES` names. One that is named twice is an error, so that
/// there is none.
fn selected(list: &str, count: usize) -> Vec<usize> {
    let all: Vec<usize> = list.split(',').map_while(|it| named(it.trim(), count)).collect();
    let is_repeated = all.iter().enumerate().any(|(at, it)| all[..at].contains(it));
    if is_repeated { Vec::new() } else { all }
}

/// Returns the only GPU that this names: its number, or the beginning of its UUID.
fn named(text: &str, count: usize) -> Option<usize> {
    if let Ok(number) = text.parse::<usize>() {
        return Some(number).filter(|it| *it < count);
    }
    let mut of_uuid = (0..count).filter(|it| text.len() > "GPU-".len() && uuid_text(*it).starts_with(text));
    of_uuid.next().filter(|_| of_uuid.next().is_none())
}

/// Returns the number of GPUs that the process sees.
pub(crate) fn count() -> usize {
    visible().len()
}

/// Whether the process has a GPU of this number.
pub(crate) fn check(ordinal: i32) -> Status {
    if (0..count() as i32).contains(&ordinal) { Ok(()) } else { Err(error::INVALID_DEVICE) }
}

/// Returns the UUID of a GPU that the process sees.
pub(crate) fn uuid(ordinal: i32) -> [u8; 16] {
    uuid_of(visible().get(ordinal as usize).copied().unwrap_or(0))
}

fn uuid_of(gpu: usize) -> [u8; 16] {
    let mut uuid = FIRST_UUID;
    uuid[15] += gpu as u8;
    uuid
}

fn uuid_text(gpu: usize) -> String {
    let hex: String = uuid_of(gpu).iter().map(|it| format!("{it:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_visible_devices_selects_and_orders() {
        let second = uuid_text(1);
        assert_eq!(second, "GPU-78707574-7261-6365-2d73-6f6674677076");
        let cases = [
            ("0,1,2", vec![0, 1, 2]),
            ("2,0", vec![2, 0]),
            (" 1 , 2", vec![1, 2]),
            ("1,7,0", vec![1]),
            ("-1", vec![]),
            ("", vec![]),
            ("0,0", vec![]),
            (&second, vec![1]),
            ("GPU-78707574-7261-6365-2d73-6f6674677077,0", vec![2, 0]),
            ("GPU-7870", vec![]),
            ("none", vec![]),
        ];
        for (list, expected) in cases {
            assert_eq!(selected(list, 3), expected, "{list}");
        }
    }
}
