//! Reads a process's or thread's id in its own pid namespace from `/proc/…/status`
//! (proc_pid_status(5)).

/// Returns the id in the innermost namespace: the last number of `NSpid`.
pub fn innermost_id(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|it| it.strip_prefix("NSpid:"))?;
    ids.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::innermost_id;

    #[test]
    fn the_last_of_the_ids_is_the_innermost() {
        assert_eq!(innermost_id("Name:\ta\nNSpid:\t4711\t23\t1\nNSpgid:\t9\n"), Some(1));
        assert_eq!(innermost_id("NSpid:\t4711\n"), Some(4711));
        for status in ["", "NSpid:", "NSpid:\tx", "NSpid:\t99999999999", "Name:\tNSpid: 4"] {
            assert_eq!(innermost_id(status), None, "{status}");
        }
    }
}
