//! `cofferdam top`: what an operator on call sees, in a terminal. It shows and changes nothing.

pub mod args;
mod text;

use crate::exit::{Exit, Failure};
use crate::files::say;
use ::desk::{Urgency, View};
use anyhow::{Context, anyhow};
use args::Top;
use gate::facts::net::{Address, Secret, Tls, TlsFiles, get};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};
use text::{Tone, lines};

/// Bytes of a state: some 200 nodes are a quarter of one MiB.
const STATE_MAX: usize = 16 << 20;
/// What one question may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How long a key is waited for before it is looked whether something has come.
const KEY_WAIT: Duration = Duration::from_millis(200);

/// Whom to ask.
struct Source {
    address: Address,
    key: Secret,
    tls: Tls,
}

/// Runs it; with `--once` the exit code says whether something is suspect.
pub(crate) fn run(args: &Top) -> Result<Exit, Failure> {
    let source = source(args).map_err(Failure::usage)?;
    if args.once {
        let view = fetched(&source).map_err(Failure::unreachable)?;
        let text: Vec<String> = lines(&view).iter().map(text::plain).collect();
        say(&(text.join("\n") + "\n"))?;
        return Ok(match view.headline.level {
            Urgency::Calm | Urgency::Attention => Exit::Good,
            Urgency::Contained | Urgency::Alarm => Exit::Found,
        });
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let error = anyhow!("this is no terminal: --once prints it as text");
        return Err(Failure::usage(error));
    }
    let news = asked(source, args.every);
    let mut terminal = ratatui::try_init()
        .context("the terminal cannot be used")
        .map_err(Failure::found)?;
    let done = shown(&mut terminal, &args.url, &news);
    ratatui::restore();
    done.context("the terminal").map_err(Failure::found)?;
    Ok(Exit::Good)
}

fn source(args: &Top) -> anyhow::Result<Source> {
    let address = Address::server(&args.url).map_err(|why| anyhow!("{}: {why}", args.url))?;
    let key = match args.key_file.strip_prefix("env:") {
        Some(name) => Secret::from_env(name)?,
        None => Secret::from_file(Path::new(&args.key_file))?,
    };
    let tls = Tls::new(&TlsFiles {
        ca: args.ca.clone(),
        ..TlsFiles::default()
    })?;
    Ok(Source {
        address: address.with_path("/state"),
        key,
        tls,
    })
}

fn fetched(source: &Source) -> anyhow::Result<View> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let end = tokio::time::Instant::now() + WITHIN;
    let (address, key, tls) = (&source.address, &source.key, &source.tls);
    let body = runtime.block_on(get(address, Some(key), tls, STATE_MAX, end));
    let body = body.map_err(|trouble| anyhow!("{address}: {trouble}"))?;
    let view = serde_json::from_slice(&body.into_bytes());
    view.with_context(|| format!("{address} is no operators' listener, or of another version"))
}

/// Asks for ever, beside; who does not look gets the newest later.
fn asked(source: Source, every: Duration) -> Receiver<Result<View, String>> {
    let (send, news) = sync_channel(1);
    std::thread::spawn(move || {
        loop {
            let view = fetched(&source).map_err(|error| error.to_string());
            if send.send(view).is_err() {
                return;
            }
            std::thread::sleep(every);
        }
    });
    news
}

/// Draws until somebody has seen enough.
fn shown(
    terminal: &mut DefaultTerminal,
    url: &str,
    news: &Receiver<Result<View, String>>,
) -> std::io::Result<()> {
    let mut view: Option<(View, Instant)> = None;
    let mut trouble = Some(format!("asking {url} …"));
    let mut from = 0u16;
    loop {
        match news.try_recv() {
            Ok(Ok(new)) => (view, trouble) = (Some((new, Instant::now())), None),
            Ok(Err(error)) => trouble = Some(error),
            Err(_) => {}
        }
        let mut page = Vec::new();
        if let Some(trouble) = &trouble {
            let age = view.as_ref().map_or(String::new(), |(_, at)| {
                format!(" (below: what was so {} s ago)", at.elapsed().as_secs())
            });
            let words = format!("NOT LIVE: {}{age}", text::tame(trouble));
            page.push(vec![(words, Tone::Bad)]);
        }
        page.extend(view.iter().flat_map(|(view, _)| lines(view)));
        from = from.min(
            u16::try_from(page.len())
                .unwrap_or(u16::MAX)
                .saturating_sub(1),
        );
        terminal.draw(|frame| draw(frame, &page, from))?;
        if !event::poll(KEY_WAIT)? {
            continue;
        }
        let Event::Key(key) = event::read()? else {
            continue;
        };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('c') if key.modifiers == KeyModifiers::CONTROL => return Ok(()),
            KeyCode::Down | KeyCode::Char('j') => from = from.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => from = from.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => from = from.saturating_add(20),
            KeyCode::PageUp => from = from.saturating_sub(20),
            KeyCode::Home => from = 0,
            _ => {}
        }
    }
}

fn draw(frame: &mut Frame, page: &[text::Words], from: u16) {
    let page: Vec<Line> = page.iter().map(coloured).collect();
    let last = Line::styled(
        " q ends   ↑↓ PgUp PgDn move   acting is for the page",
        Style::new().add_modifier(Modifier::DIM),
    );
    let mut area = frame.area();
    area.height = area.height.saturating_sub(1);
    frame.render_widget(Paragraph::new(page).scroll((from, 0)), area);
    area.y = area.height;
    area.height = 1;
    frame.render_widget(last, area.intersection(frame.area()));
}

fn coloured(words: &text::Words) -> Line<'static> {
    let colours = crate::colour::wanted(true);
    let spans = words.iter().map(|(words, tone)| {
        let style = match tone {
            Tone::Plain => Style::new(),
            Tone::Soft => Style::new().add_modifier(Modifier::DIM),
            Tone::Head => Style::new().add_modifier(Modifier::BOLD),
            Tone::Good => Style::new().fg(Color::Green),
            Tone::Look => Style::new().fg(Color::Yellow),
            Tone::Held => Style::new().fg(Color::Magenta).add_modifier(Modifier::BOLD),
            Tone::Bad => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        };
        let style = if colours {
            style
        } else {
            Style { fg: None, ..style }
        };
        Span::styled(words.clone(), style)
    });
    Line::from(spans.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(terminal: &Terminal<TestBackend>) -> Vec<String> {
        let buffer = terminal.backend().buffer();
        let row = |y| (0..buffer.area.width).map(move |x| buffer[(x, y)].symbol());
        let rows = (0..buffer.area.height).map(|y| row(y).collect::<String>());
        rows.map(|it| it.trim_end().to_owned()).collect()
    }

    #[test]
    fn a_screen_shows_a_part_of_the_page_and_how_to_leave() {
        let page = lines(&View::default());
        let mut terminal = Terminal::new(TestBackend::new(60, 8)).unwrap();
        terminal.draw(|frame| draw(frame, &page, 0)).unwrap();
        let shown = screen(&terminal);
        assert_eq!(shown[2], "NEEDS A LOOK  .");
        assert_eq!(
            shown[7],
            " q ends   ↑↓ PgUp PgDn move   acting is for the page"
        );
        let last = u16::try_from(page.len()).unwrap() - 1;
        terminal.draw(|frame| draw(frame, &page, last)).unwrap();
        let shown = screen(&terminal);
        assert_eq!(shown[0], "JOURNAL   none: nothing is written down");
        assert!(
            shown[1].is_empty() && shown[7].starts_with(" q ends"),
            "{shown:?}"
        );
    }
}
