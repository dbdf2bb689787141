//! The same ledger in another trade: it guards the player slots of a game server.
//!
//! A slot is a page of one place. A lobby is an owner: it reserves all its slots or none, fills
//! them one by one, and may be turned away at any moment; what it never filled nobody ever sees.
//! A client holds a [`Ticket`], which is data and proves nothing until its tag equals the slot's
//! present one, so a ticket of an earlier stay is refused even where the slot is the same. What a
//! player left behind is wiped before the slot is free again. Two updates that saw the same
//! revision cannot both win.
//!
//! `cargo run -p pages --example session_slots`

use pages::{
    BlockTable, Config, Counts, Domain, Grant, Misuse, Owner, OwnerId, PageId, Pool, Seal,
    Shortage, StatedTag, Step, VerifyFault,
};
use std::fmt;

/// All slots of one server: what is in them, and the ledger that says whose they are.
pub struct Server {
    ledger: Pool,
    players: Vec<Option<String>>,
}

/// Slots of one lobby: those that have a player, in order of arrival, and those that wait for one.
pub struct Lobby {
    owner: Owner,
    taken: Vec<Grant>,
    waiting: Vec<Grant>,
    roster: BlockTable,
}

/// What a client is told, and what it says when it comes back.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// Which slot.
    pub slot: PageId,
    /// Which stay in it.
    pub stay: StatedTag,
    /// The slot's content as the client saw it last.
    pub revision: u32,
}

/// Why the server says no.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    /// Fewer free slots than asked for; none was taken.
    Full(Shortage),
    /// The lobby has no slot left.
    LobbyFull,
    /// The ticket is of an earlier stay, or of another lobby.
    StaleTicket(PageId),
    /// Somebody else has changed the slot since.
    Changed {
        /// The client's revision.
        saw: u32,
        /// The slot's.
        is: u32,
    },
    /// The server's own books do not agree: a fault of the server, not of the client.
    Books(String),
}

impl Server {
    /// A server with so many slots, all free.
    pub fn new(slots: u32) -> Self {
        let (ledger, _mint) = Pool::new(Config {
            pages: slots,
            page_size: 1,
            scrub: true, // a slot is not free before it was wiped
        });
        Self {
            ledger,
            players: vec![None; slots as usize],
        }
    }

    /// Takes `seats` slots for a lobby of `game`, or none.
    pub fn open_lobby(&mut self, id: u64, game: u64, seats: usize) -> Result<Lobby, Refusal> {
        let owner = Owner {
            id: OwnerId::new(id),
            domain: Domain::new(game),
            lane: 0,
        };
        Ok(Lobby {
            owner,
            taken: Vec::new(),
            waiting: self.ledger.reserve(owner, seats).map_err(Refusal::Full)?,
            roster: BlockTable::new(owner, self.ledger.page_size()),
        })
    }

    /// Puts a player into the lobby's next slot. The seal makes it visible.
    pub fn join(&mut self, lobby: &mut Lobby, player: &str) -> Result<Ticket, Refusal> {
        let seat = lobby.waiting.pop().ok_or(Refusal::LobbyFull)?;
        let (slot, stay) = (seat.page(), seat.tag().stated());
        self.players[slot.index()] = Some(player.to_owned());
        let seal = Seal {
            ordinal: lobby.taken.len() as u32,
            filled: 1,
            checksum: Some(0), // the revision
        };
        let sealed = self.ledger.seal(&seat, seal);
        lobby.roster.push_own(&seat);
        lobby.taken.push(seat);
        sealed?;
        lobby.roster.advance_to(lobby.taken.len() as u32);
        let revision = 0;
        Ok(Ticket {
            slot,
            stay,
            revision,
        })
    }

    /// Who plays in this lobby. Only slots of a verified roster are looked at: a slot that is
    /// reserved, released, or somebody else's by now is never read.
    pub fn players<'s>(&'s self, lobby: &'s mut Lobby) -> Result<Vec<&'s str>, Refusal> {
        let roster = Step {
            table: &mut lobby.roster,
            new: 0,
        };
        let verified = self.ledger.verify(vec![roster])?;
        let slots = verified.sequences().iter().flat_map(|lobby| lobby.pages());
        Ok(slots
            .filter_map(|slot| self.players[slot.index()].as_deref())
            .collect())
    }

    /// Renames a player, if the slot is still what the client saw (compare and set).
    pub fn rename(&mut self, lobby: &Lobby, ticket: Ticket, name: &str) -> Result<Ticket, Refusal> {
        let seat = lobby
            .taken
            .iter()
            .find(|seat| seat.page() == ticket.slot && ticket.stay == seat.tag())
            .ok_or(Refusal::StaleTicket(ticket.slot))?;
        let is = self.ledger.seal_of(seat)?.checksum.unwrap_or(0);
        if is != ticket.revision {
            return Err(Refusal::Changed {
                saw: ticket.revision,
                is,
            });
        }
        let revision = is + 1;
        self.ledger.extend(seat, 1, Some(revision))?;
        self.players[ticket.slot.index()] = Some(name.to_owned());
        Ok(Ticket { revision, ..ticket })
    }

    /// The lobby ends, or is turned away: every slot goes back, filled or not, and is wiped first.
    pub fn close(&mut self, lobby: Lobby) -> Result<(), Refusal> {
        for seat in lobby.taken.into_iter().chain(lobby.waiting) {
            // A refused seat is dropped here: its slot stays in quarantine, and is counted.
            self.ledger.release(seat).map_err(|(_, why)| why)?;
        }
        for slot in self.ledger.to_scrub() {
            self.players[slot.index()] = None;
            self.ledger.scrubbed(slot)?;
        }
        Ok(())
    }

    /// Slots by state; their sum is the server.
    pub fn counts(&mut self) -> Counts {
        self.ledger.counts()
    }
}

impl Lobby {
    /// Whose it is.
    pub fn owner(&self) -> Owner {
        self.owner
    }
}

impl From<Misuse> for Refusal {
    fn from(misuse: Misuse) -> Self {
        Self::Books(misuse.to_string())
    }
}

impl From<VerifyFault> for Refusal {
    fn from(fault: VerifyFault) -> Self {
        Self::Books(fault.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(shortage) => write!(f, "no room: {shortage}"),
            Self::LobbyFull => write!(f, "the lobby is full"),
            Self::StaleTicket(slot) => write!(f, "this ticket for {slot:?} has run out"),
            Self::Changed { saw, is } => write!(f, "you saw revision {saw}, it is {is}"),
            Self::Books(why) => write!(f, "fault of the server: {why}"),
        }
    }
}

impl std::error::Error for Refusal {}

/// An evening at the server.
pub fn main() -> Result<(), Refusal> {
    let mut server = Server::new(12);
    let mut quiet = server.open_lobby(1, 7, 4)?;
    server.join(&mut quiet, "Ada")?;

    let mut hasty = server.open_lobby(2, 7, 8)?;
    let ticket = server.join(&mut hasty, "Mallory")?;
    println!("both lobbies are here: {:?}", server.counts());
    println!("a third one: {}", server.open_lobby(3, 7, 1).err().unwrap());
    server.close(hasty)?;
    println!("the hasty one was turned away: {:?}", server.counts());

    let mut next = server.open_lobby(4, 7, 8)?;
    assert_eq!(server.join(&mut next, "Grace")?.slot, ticket.slot);
    let refused = server
        .rename(&next, ticket, "Mallory was here")
        .unwrap_err();
    println!("and comes back with its old ticket: {refused}");
    println!("who plays: {:?}", server.players(&mut next)?);
    server.close(next)?;
    server.close(quiet)
}
