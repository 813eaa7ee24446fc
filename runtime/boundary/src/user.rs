//! Users, and acting with their rights.

use crate::answer;
use std::io;
use std::marker::PhantomData;

/// A user, and their group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
}

impl Account {
    pub const ROOT: Account = Account { uid: 0, gid: 0 };

    /// Returns the one that this thread acts as.
    pub fn current() -> Self {
        // SAFETY: both calls only return numbers.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Account { uid, gid }
    }
}

/// Whether this thread may become other users.
pub fn is_root() -> bool {
    Account::current().uid == 0
}

/// The effective user and groups of this thread, changed until dropped. libc's functions would change those of all
/// threads, some of which need our rights. The process ends if they can't be changed back.
#[derive(Debug)]
pub struct ActingAs {
    before: Option<Before>,
    /// It is the thread that is changed, so this stays on it.
    of_this_thread: PhantomData<*const ()>,
}

#[derive(Debug)]
struct Before {
    account: Account,
    groups: Vec<u32>,
}

/// `-1` of setresuid(2): leaves an id as it is.
const SAME: u32 = u32::MAX;

impl ActingAs {
    /// Takes the rights of a user in place of root's; does nothing where we are not root, or are that user.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn user(account: Account, groups: &[u32]) -> io::Result<Self> {
        let now = Account::current();
        if now.uid != 0 || account.uid == 0 {
            return Ok(ActingAs { before: None, of_this_thread: PhantomData });
        }
        // From here on, what was changed is changed back when this is dropped.
        let acting =
            ActingAs { before: Some(Before { account: now, groups: own_groups()? }), of_this_thread: PhantomData };
        set_groups(groups)?;
        set_group(account.gid)?;
        set_user(account.uid)?;
        Ok(acting)
    }
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        let Some(before) = &self.before else { return };
        // The saved user id is still root's, and root may have any group: none of these can fail.
        let restored = set_user(before.account.uid)
            .and_then(|()| set_group(before.account.gid))
            .and_then(|()| set_groups(&before.groups));
        if let Err(error) = restored {
            end(before, &error);
        }
    }
}

/// Ends the process: what follows would run with rights that it should not have.
fn end(before: &Before, error: &io::Error) -> ! {
    let uid = before.account.uid;
    let text = format!("xputrace: a thread could not take the rights of user {uid} again, and can't go on: {error}\n");
    // SAFETY: bytes and their length. Nothing else is done with the rights of now.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    std::process::abort();
}

fn own_groups() -> io::Result<Vec<u32>> {
    // SAFETY: with a size of 0 it only returns how many there are.
    let n = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(n).map_err(|_| io::Error::last_os_error())?];
    // SAFETY: room for `n` numbers.
    let n = unsafe { libc::getgroups(n, groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(n).map_err(|_| io::Error::last_os_error())?);
    Ok(groups)
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: a live list and its length.
    answer(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })
}

fn set_user(uid: u32) -> io::Result<()> {
    // SAFETY: sets numbers of the calling thread.
    answer(unsafe { libc::syscall(libc::SYS_setresuid, SAME, uid, SAME) })
}

fn set_group(gid: u32) -> io::Result<()> {
    // SAFETY: as above.
    answer(unsafe { libc::syscall(libc::SYS_setresgid, SAME, gid, SAME) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_acts_as_a_user_and_then_as_itself_again() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        let before = (Account::current(), own_groups().unwrap());
        let them = Account { uid: 12_345, gid: 12_346 };
        {
            let _acting = ActingAs::user(them, &[12_347]).unwrap();
            assert_eq!((Account::current(), own_groups().unwrap()), (them, vec![12_347]));
            let others = std::thread::spawn(Account::current).join().unwrap();
            assert_eq!(others, them, "a new thread begins as the one that made it");
        }
        assert_eq!((Account::current(), own_groups().unwrap()), before);
    }

    /// Set for a process that runs one test of these alone.
    const ALONE: &str = "XPUTRACE_TEST_LOSES_RIGHTS";

    #[test]
    fn who_can_not_become_root_again_ends() {
        if !is_root() {
            println!("skipped: not root");
            return;
        }
        if std::env::var_os(ALONE).is_some() {
            let _acting = ActingAs::user(Account { uid: 12_345, gid: 12_346 }, &[]).unwrap();
            // SAFETY: sets numbers of this thread. The saved id was root's.
            unsafe { libc::syscall(libc::SYS_setresuid, 12_345, 12_345, 12_345) };
            return;
        }
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "user::tests::who_can_not_become_root_again_ends", "--nocapture"]).env(ALONE, "1");
        let ended = alone.output().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.status), Some(libc::SIGABRT), "{ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("a thread could not take the rights of user 0 again"), "{said}");
    }
}
