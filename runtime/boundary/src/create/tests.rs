use super::*;
use crate::user::{Account, is_root};
use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.at(name)).unwrap().mode() & 0o777
    }
}

fn pipe(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
}

#[test]
fn the_old_file_stays_until_the_new_one_is_whole() {
    let folder = Folder::new();
    let own = Creator::own();
    fs::write(folder.at("x"), "old").unwrap();
    let mut draft = own.place(&folder.at("x")).unwrap().draft(FileAccess::Usual).unwrap();
    draft.write_all(b"new").unwrap();
    assert_eq!(folder.text("x"), "old");
    assert!(draft.path().exists());
    drop(draft);
    assert_eq!((folder.names(), folder.text("x")), (vec!["x".into()], "old".into()));
    own.write(&folder.at("x"), b"new", FileAccess::Usual).unwrap();
    assert_eq!((folder.names(), folder.text("x")), (vec!["x".into()], "new".into()));
}

#[test]
fn a_draft_that_is_kept_stays_under_its_own_name() {
    let folder = Folder::new();
    let mut draft = Creator::own().place(&folder.at("t.xpt")).unwrap().draft(FileAccess::Private).unwrap();
    draft.keep();
    let path = draft.path();
    drop(draft);
    assert!(path.exists() && !folder.at("t.xpt").exists());
    assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn modes_are_as_they_should_be() {
    let folder = Folder::new();
    let own = Creator::own();
    fs::write(folder.at("plain"), "").unwrap();
    own.write(&folder.at("new"), b"", FileAccess::Usual).unwrap();
    assert_eq!(folder.mode("new"), folder.mode("plain"));
    fs::set_permissions(folder.at("new"), Permissions::from_mode(0o640)).unwrap();
    own.write(&folder.at("new"), b"", FileAccess::Usual).unwrap();
    assert_eq!(folder.mode("new"), 0o640, "kept");
    own.write(&folder.at("new"), b"", FileAccess::Private).unwrap();
    own.write(&folder.at("program"), b"", FileAccess::Program).unwrap();
    assert_eq!((folder.mode("new"), folder.mode("program")), (0o600, 0o755));
}

#[test]
fn links_of_ours_are_followed_and_stay() {
    let folder = Folder::new();
    symlink("x", folder.at("link")).unwrap();
    Creator::own().write(&folder.at("link"), b"1", FileAccess::Usual).unwrap();
    assert!(folder.at("link").is_symlink());
    assert_eq!(folder.text("x"), "1");
}

#[test]
fn what_can_not_be_written_is_said_before_anything_runs() {
    let folder = Folder::new();
    let refused = |path: &str| Creator::own().destination(&folder.at(path)).unwrap_err().kind();
    assert_eq!(refused("none/x"), io::ErrorKind::NotFound);
    assert_eq!(refused("."), io::ErrorKind::IsADirectory);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn devices_and_pipes_of_ours_are_written_as_they_are() {
    let folder = Folder::new();
    let own = Creator::own();
    own.write(Path::new("/dev/null"), b"x", FileAccess::Usual).unwrap();
    pipe(&folder.at("pipe"));
    let path = folder.at("pipe");
    let reader = std::thread::spawn(move || fs::read_to_string(path).unwrap());
    own.write(&folder.at("pipe"), b"text", FileAccess::Usual).unwrap();
    assert_eq!(reader.join().unwrap(), "text");
    assert!(folder.at("pipe").symlink_metadata().unwrap().file_type().is_fifo());
    assert!(own.place(&folder.at("pipe")).is_err());
}

#[test]
fn links_and_pipes_of_others_are_replaced() {
    if !is_root() {
        println!("skipped: not root");
        return;
    }
    let folder = Folder::new();
    let own = Creator::own();
    fs::write(folder.at("precious"), "precious").unwrap();
    symlink("precious", folder.at("link")).unwrap();
    pipe(&folder.at("pipe"));
    for name in ["link", "pipe"] {
        lchown(folder.at(name), Some(12_345), None).unwrap();
        own.write(&folder.at(name), b"new", FileAccess::Usual).unwrap();
        assert!(folder.at(name).symlink_metadata().unwrap().is_file(), "{name}");
    }
    assert_eq!(folder.text("precious"), "precious");
    let mut draft = own.place(&folder.at("late")).unwrap().draft(FileAccess::Usual).unwrap();
    symlink("precious", folder.at("late")).unwrap();
    lchown(folder.at("late"), Some(12_345), None).unwrap();
    draft.write_all(b"new").unwrap();
    draft.finish().unwrap();
    assert!(!folder.at("late").is_symlink());
    assert_eq!((folder.text("late"), folder.text("precious")), ("new".into(), "precious".into()));
}

#[test]
fn files_are_made_where_their_creator_may_and_are_theirs() {
    if !is_root() {
        println!("skipped: not root");
        return;
    }
    let folder = Folder::new();
    let them = Creator::of(Account { uid: 12_345, gid: 12_346 }, vec![]);
    for mode in [0o700, 0o755] {
        fs::set_permissions(folder.0.path(), Permissions::from_mode(mode)).unwrap();
        let refused = them.destination(&folder.at("x")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let file = format!("roots/{mode:o}");
        them.clone().or_root().directory(&folder.at("roots")).unwrap();
        them.clone().or_root().write(&folder.at(&file), b"", FileAccess::Usual).unwrap();
        assert_eq!(fs::metadata(folder.at(&file)).unwrap().uid(), 0);
    }
    let theirs = them.clone().or_root();
    fs::create_dir(folder.at("third")).unwrap();
    chown(folder.at("third"), Some(12_399), None).unwrap();
    assert!(theirs.destination(&folder.at("third/x")).is_err(), "a third user's directory");
    chown(folder.0.path(), Some(12_345), None).unwrap();
    them.write(&folder.at("x"), b"", FileAccess::Usual).unwrap();
    them.directory(&folder.at("a/b")).unwrap();
    for name in ["x", "a", "a/b"] {
        let about = fs::metadata(folder.at(name)).unwrap();
        assert_eq!((about.uid(), about.gid()), (12_345, 12_346), "{name}");
    }
}

#[test]
fn a_draft_says_where_it_is() {
    let folder = Folder::new();
    fs::create_dir(folder.at("a")).unwrap();
    symlink("a/x", folder.at("link")).unwrap();
    let draft = Creator::own().place(&folder.at("link")).unwrap().draft(FileAccess::Usual).unwrap();
    assert!(draft.path().exists() && draft.path().starts_with(folder.at("a")), "{}", draft.path().display());
    assert_eq!(draft.target(), folder.at("link"));
    let directory = fs::File::open(folder.at("a")).unwrap();
    assert!(Creator::own().place_in(directory, "y".into()).draft(FileAccess::Usual).unwrap().path().exists());
}

#[test]
fn a_draft_that_can_not_take_its_place_stays() {
    let folder = Folder::new();
    let mut draft = Creator::own().place(&folder.at("x")).unwrap().draft(FileAccess::Usual).unwrap();
    draft.write_all(b"results").unwrap();
    let path = draft.path();
    fs::create_dir(folder.at("x")).unwrap();
    let said = draft.finish().unwrap_err().to_string();
    assert!(said.ends_with(&format!("; what was written is in {}", path.display())), "{said}");
    assert_eq!(fs::read_to_string(path).unwrap(), "results");
}

#[test]
fn a_file_can_be_written_on_in_its_place() {
    let folder = Folder::new();
    let mut file = Creator::own().place(&folder.at("x")).unwrap().draft(FileAccess::Usual).unwrap().publish().unwrap();
    assert_eq!((folder.names(), folder.text("x")), (vec!["x".into()], String::new()));
    file.write_all(b"later").unwrap();
    assert_eq!(folder.text("x"), "later");
}

#[test]
fn a_new_file_keeps_the_group_of_the_one_before() {
    if !is_root() {
        println!("skipped: not root");
        return;
    }
    let folder = Folder::new();
    fs::set_permissions(folder.0.path(), Permissions::from_mode(0o755)).unwrap();
    chown(folder.0.path(), Some(12_345), None).unwrap();
    let account = Account { uid: 12_345, gid: 12_345 };
    let (member, other) = (Creator::of(account, vec![12_399]), Creator::of(account, vec![]));
    let written = |by: &Creator, mode: u32| {
        fs::write(folder.at("x"), "").unwrap();
        fs::set_permissions(folder.at("x"), Permissions::from_mode(mode)).unwrap();
        chown(folder.at("x"), Some(by.account().uid), Some(12_399)).unwrap();
        by.write(&folder.at("x"), b"", FileAccess::Usual).unwrap();
        (fs::metadata(folder.at("x")).unwrap().gid(), folder.mode("x"))
    };
    assert_eq!((written(&member, 0o664), written(&member, 0o640)), ((12_399, 0o664), (12_399, 0o640)));
    assert_eq!(written(&Creator::own(), 0o660), (12_399, 0o660));
    // Who may not give it that group gives none of its rights to another.
    assert_eq!((written(&other, 0o664), written(&other, 0o640)), ((12_345, 0o644), (12_345, 0o600)));
}

#[test]
fn root_makes_links_where_a_user_may_not() {
    if !is_root() {
        println!("skipped: not root");
        return;
    }
    let folder = Folder::new();
    fs::set_permissions(folder.0.path(), Permissions::from_mode(0o755)).unwrap();
    let them = Creator::of(Account { uid: 12_345, gid: 12_345 }, vec![]);
    assert!(them.link(Path::new("to"), &folder.at("link")).is_err());
    for _ in 0..2 {
        them.clone().or_root().link(Path::new("to"), &folder.at("link")).unwrap();
        assert_eq!(fs::read_link(folder.at("link")).unwrap(), Path::new("to"));
    }
    fs::create_dir(folder.at("third")).unwrap();
    fs::write(folder.at("third/file"), "precious").unwrap();
    chown(folder.at("third"), Some(12_399), None).unwrap();
    for path in ["third/file", "third/new"] {
        let refused = them.clone().or_root().link(Path::new("to"), &folder.at(path)).unwrap_err();
        assert!(refused.to_string().ends_with(", as user 12345"), "{refused}");
    }
    assert!(them.or_root().directory(&folder.at("third/new")).is_err());
    assert_eq!((folder.text("third/file"), folder.at("third/new").exists()), ("precious".into(), false));
}

#[test]
fn a_pipe_is_opened_as_its_creator_and_its_reader_waited_for() {
    let folder = Folder::new();
    pipe(&folder.at("pipe"));
    let stream = |by: &Creator| match by.destination(&folder.at("pipe")).unwrap() {
        Destination::Stream(it) => it,
        Destination::File(_) => panic!("a pipe is no place"),
    };
    let mut n_asked = 0;
    let given_up = stream(&Creator::own()).open(|waited| {
        n_asked += 1;
        waited < Duration::from_millis(50)
    });
    assert_eq!(given_up.unwrap_err().to_string(), "it is a pipe that nobody has opened to read for 0 s");
    assert!(n_asked > 1);
    if !is_root() {
        println!("skipped: not root");
        return;
    }
    fs::set_permissions(folder.0.path(), Permissions::from_mode(0o755)).unwrap();
    chown(folder.at("pipe"), Some(12_345), None).unwrap();
    let them = Creator::of(Account { uid: 12_345, gid: 12_345 }, vec![]);
    let found = stream(&them);
    chown(folder.at("pipe"), Some(0), None).unwrap();
    fs::set_permissions(folder.at("pipe"), Permissions::from_mode(0o600)).unwrap();
    assert_eq!(found.open(|_| true).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn what_procfs_leads_to_is_written_as_it_is() {
    let folder = Folder::new();
    fs::write(folder.at("file"), "before").unwrap();
    let file = fs::File::open(folder.at("file")).unwrap();
    let of_thread =
        |it: &fs::File| Path::new("/proc/thread-self/fd").join(std::os::fd::AsRawFd::as_raw_fd(it).to_string());
    Creator::own().write(&of_thread(&file), b"new", FileAccess::Usual).unwrap();
    assert_eq!(folder.text("file"), "new");
    let here = fs::File::open(folder.0.path()).unwrap();
    assert_eq!(Creator::own().destination(&of_thread(&here)).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    Creator::own().write(&of_thread(&here).join("beside"), b"text", FileAccess::Usual).unwrap();
    assert_eq!(folder.text("beside"), "text");
    if !is_root() {
        println!("skipped: not root");
        return;
    }
    chown(folder.at("file"), Some(12_345), None).unwrap();
    assert!(
        Creator::own().write(&of_thread(&file), b"", FileAccess::Usual).is_err(),
        "another user's, which has no name here"
    );
    assert_eq!(folder.text("file"), "new");
}

#[test]
fn a_directory_of_ours_alone_is_removed() {
    let folder = Folder::new();
    let remove = |name: &str| Creator::own().remove_own_directory(&folder.at(name), "socket".as_ref());
    for name in ["ours", "open", "full"] {
        fs::create_dir(folder.at(name)).unwrap();
        fs::write(folder.at(name).join("socket"), "").unwrap();
    }
    fs::set_permissions(folder.at("open"), Permissions::from_mode(0o777)).unwrap();
    fs::write(folder.at("full/other"), "").unwrap();
    symlink("full", folder.at("link")).unwrap();
    remove("ours").unwrap();
    for name in ["open", "full", "link", "none"] {
        assert!(remove(name).is_err(), "{name}");
    }
    assert_eq!(folder.names(), ["full", "link", "open"]);
}
