//! Ids of a process or thread from `/proc/…/status` (proc_pid_status(5)).

/// The id in the innermost namespace: the last number of `NSpid`.
pub fn innermost_id(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|it| it.strip_prefix("NSpid:"))?;
    ids.split_whitespace().last()?.parse().ok()
}

/// The parent's id in the namespace of whoever reads the file; 0 where the parent is outside it.
pub fn parent_id(status: &str) -> Option<u32> {
    status.lines().find_map(|it| it.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{innermost_id, parent_id};

    #[test]
    fn the_parent_has_a_line_of_its_own() {
        assert_eq!(parent_id("Name:\tPPid: 9\nPid:\t7\nPPid:\t4711\nTracerPid:\t3\n"), Some(4711));
        assert_eq!([parent_id(""), parent_id("PPid:\tx")], [None, None]);
    }

    #[test]
    fn the_last_of_the_ids_is_the_innermost() {
        assert_eq!(innermost_id("Name:\ta\nNSpid:\t4711\t23\t1\nNSpgid:\t9\n"), Some(1));
        assert_eq!(innermost_id("NSpid:\t4711\n"), Some(4711));
        for status in ["", "NSpid:", "NSpid:\tx", "NSpid:\t99999999999", "Name:\tNSpid: 4"] {
            assert_eq!(innermost_id(status), None, "{status}");
        }
    }
}
