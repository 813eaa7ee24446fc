//! Fields of `/proc/…/status` (proc_pid_status(5)).

/// Returns a field's value, given its name without the colon.
pub fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|it| it.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Returns a process's or thread's id in the innermost pid namespace: the last number of `NSpid`.
pub fn innermost_id(status: &str) -> Option<u32> {
    field(status, "NSpid")?.split_whitespace().last()?.parse().ok()
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
