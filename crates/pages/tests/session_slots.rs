//! The example `session_slots`, held to what its first page says.

#[path = "../examples/session_slots.rs"]
mod session_slots;

use session_slots::{Refusal, Server, Ticket};

#[test]
fn the_example_runs() {
    session_slots::main().unwrap();
}

#[test]
fn a_rejected_lobby_shows_the_one_slot_that_it_filled_and_leaves_nothing() {
    let mut server = Server::new(8);
    let mut lobby = server.open_lobby(1, 7, 8).unwrap();
    assert_eq!(server.players(&mut lobby).unwrap(), Vec::<&str>::new());
    server.join(&mut lobby, "Mallory").unwrap();
    assert_eq!(server.players(&mut lobby).unwrap(), ["Mallory"]);
    let counts = server.counts();
    assert_eq!((counts.sealed, counts.reserved), (1, 7));

    server.close(lobby).unwrap();
    assert_eq!(server.counts().free, 8, "all came back, filled or not");
    let mut next = server.open_lobby(2, 7, 8).unwrap();
    assert_eq!(server.players(&mut next).unwrap(), Vec::<&str>::new());
    server.join(&mut next, "Ada").unwrap();
    assert_eq!(server.players(&mut next).unwrap(), ["Ada"]);
    server.close(next).unwrap();
}

#[test]
fn a_lobby_gets_all_its_slots_or_none() {
    let mut server = Server::new(8);
    let five = server.open_lobby(1, 7, 5).unwrap();
    let Err(Refusal::Full(shortage)) = server.open_lobby(2, 7, 4) else {
        panic!("there were only three");
    };
    assert_eq!((shortage.wanted, shortage.free), (4, 3));
    assert_eq!(server.counts().reserved, 5);
    server.close(five).unwrap();
}

#[test]
fn a_ticket_of_an_earlier_stay_is_refused() {
    let mut server = Server::new(1);
    let mut lobby = server.open_lobby(1, 7, 1).unwrap();
    let stale = server.join(&mut lobby, "Mallory").unwrap();
    server.close(lobby).unwrap();
    let mut lobby = server.open_lobby(2, 7, 1).unwrap();
    assert_eq!(lobby.owner().id.value(), 2);
    let present = server.join(&mut lobby, "Ada").unwrap();
    assert_eq!(present.slot, stale.slot, "the same slot");
    let refused = server.rename(&lobby, stale, "Mallory").unwrap_err();
    assert_eq!(refused, Refusal::StaleTicket(stale.slot));
    assert_eq!(server.players(&mut lobby).unwrap(), ["Ada"]);
    assert_eq!(
        server.join(&mut lobby, "Grace").unwrap_err(),
        Refusal::LobbyFull
    );
    server.close(lobby).unwrap();
}

#[test]
fn of_two_changes_that_saw_the_same_revision_one_wins() {
    let mut server = Server::new(1);
    let mut lobby = server.open_lobby(1, 7, 1).unwrap();
    let saw: Ticket = server.join(&mut lobby, "Ada").unwrap();
    let newer = server.rename(&lobby, saw, "Ada L.").unwrap();
    let refused = server.rename(&lobby, saw, "A. Lovelace").unwrap_err();
    assert_eq!(refused, Refusal::Changed { saw: 0, is: 1 });
    assert!(refused.to_string().contains("revision 0, it is 1"));
    assert_eq!(server.players(&mut lobby).unwrap(), ["Ada L."]);
    server.rename(&lobby, newer, "A. Lovelace").unwrap();
    assert_eq!(server.players(&mut lobby).unwrap(), ["A. Lovelace"]);
    server.close(lobby).unwrap();
}
