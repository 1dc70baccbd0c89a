/* Exactly once: the transactional core of qmd as a model that spin checks exhaustively.

   A sender with its outgoing queue on disk, a receiver with its position and its messages on disk,
   and between them two channels that lose, double and reorder packets: the messages one way, the
   order acks the other.  Both ends crash between any two steps.  On request a message expires at
   the sender, the receiver loses its disk, the sender's disk is put back to an older state.
   Neither end reads the other's state: each learns only from packets, or from their absence.

   docs/model.md says which step is which line of the code, and what is not in here.
   `make model` runs it with the bounds and the planted bugs that model/__main__.py lists. */

#ifndef MESSAGES
#define MESSAGES 3        /* that the application sends */
#endif
#ifndef SLOTS
#define SLOTS 2           /* packets under way at once, each direction */
#endif
#ifndef CRASHES
#define CRASHES 1         /* of each end */
#endif
#ifndef EXPIRIES
#define EXPIRIES 0        /* messages that expire before they are acknowledged */
#endif
#ifndef DISK_LOSSES
#define DISK_LOSSES 0        /* times that the receiver returns with an empty disk */
#endif
#ifndef RESTORES
#define RESTORES 0        /* times that the sender returns with an older state of its disk */
#endif
#define ENDLESS 99        /* a budget without end */
#ifndef LOSSES
#define LOSSES ENDLESS    /* packets that the channels lose */
#endif
#ifndef DOUBLES
#define DOUBLES ENDLESS   /* packets that arrive once more */
#endif

#define SPEND(budget) budget = (budget == ENDLESS -> ENDLESS : budget - 1)
#define BIT(p) (1 << (p))

/* The states of a message at the sender. */
#define STORED 1
#define RELEASED 2        /* an order ack named it */
#define DEAD 3            /* expired: it is in the dead-letter queue */

/* ---- the sender: its disk --------------------------------------------------------------- */
/* A position counts the messages of the queue, for ever; position - s_base is the number that
   the message has in its sequence.  (OutgoingSequence.base, .sequence_id, .next_number) */
byte s_sid = 1, s_base = 0, s_count = 0;
byte fate[MESSAGES + 1];
/* The version of the message at a position: 0, or 1 if the disk lost the first one. */
bit version[MESSAGES + 1];

/* ---- the sender: its memory ------------------------------------------------------------- */
byte v_acked = 0;         /* a position: the highest that an order ack named */
byte v_highest = 0;       /* a position: the highest that was transmitted in this sequence */
byte v_cursor = 0;        /* a position: how far this pass has come */
byte v_flight = 0;        /* bits: transmitted in this pass, and not acknowledged */
byte v_removing = 0;      /* bits: expired, and the commit is under way */
bool v_fresh = true;      /* nothing was transmitted in this pass */
bool v_uncommitted = false;

/* ---- the receiver ----------------------------------------------------------------------- */
byte r_sid = 0, r_number = 0, r_last = 0;      /* disk: IncomingSequence.durable_id, _number */
byte v_sid = 0, v_number = 0, v_last = 0;      /* memory: accepted, the commit is under way */
byte pending = 0;                              /* bits: accepted, not committed */

/* ---- ghost variables: the events themselves --------------------------------------------- */
byte here = 0;            /* bits: on the receiver's present disk */
byte ever[MESSAGES + 1];  /* bits of versions: on the receiver's disk once */
#if DISK_LOSSES > 0
byte acked = 0;            /* bits: an order ack of it has arrived */
#define IS_ACKED(p) (acked & BIT(p))
#else
#define IS_ACKED(p) false
#endif

/* ---- the channels ----------------------------------------------------------------------- */
/* A packet is a number, 0 is an empty slot.  Slots are sorted, as their order has no meaning. */
short data[SLOTS], acks[SLOTS];
#define PACKET(p, sid, number, previous) \
  ((p) + 8 * (version[p] + 2 * ((sid) + 8 * ((number) + 8 * (previous)))))
#define POSITION(packet) ((packet) & 7)
#define VERSION(packet) (((packet) >> 3) & 1)
#define SID(packet) (((packet) >> 4) & 7)
#define NUMBER(packet) (((packet) >> 7) & 7)
#define PREVIOUS(packet) (((packet) >> 10) & 7)
#define ACK(sid, number) ((sid) + 8 * (number))
#define ACK_SID(packet) ((packet) & 7)
#define ACK_NUMBER(packet) ((packet) >> 3)

byte losses = LOSSES, doubles = DOUBLES, expiries = EXPIRIES, disk_losses = DISK_LOSSES;
byte s_crashes = CRASHES, r_crashes = CRASHES, restores = RESTORES;
#if RESTORES > 0
bool backed_up = false;
byte b_sid, b_base, b_count; byte b_fate[MESSAGES + 1];
#endif

hidden byte i, p; hidden short packet, other;

/* Insert a packet in order, moving greater ones up; without an empty slot it is lost. */
#define PUT(channel, it) \
  packet = it; i = 0; \
  do \
  :: i < SLOTS && channel[i] != 0 -> \
       if \
       :: channel[i] < packet -> other = channel[i]; channel[i] = packet; packet = other \
       :: else \
       fi; i++ \
  :: i < SLOTS && channel[i] == 0 -> channel[i] = packet; break \
  :: i == SLOTS -> break \
  od; \
  i = 0; packet = 0; other = 0
#define TAKE(channel, slot) \
  i = slot; \
  do \
  :: i < SLOTS - 1 -> channel[i] = channel[i + 1]; i++ \
  :: else -> break \
  od; \
  channel[SLOTS - 1] = 0; i = 0
#define HAS_ROOM(channel) (channel[SLOTS - 1] == 0)

/* The next message of this pass: p, or beyond s_count. */
#define MAY_GO(q) (fate[q] == STORED && q > v_acked && !(v_removing & BIT(q)))
#define NONE_STORED (!(fate[1] == STORED || (MESSAGES > 1 && fate[2 * (MESSAGES > 1)] == STORED) || (MESSAGES > 2 && fate[3 * (MESSAGES > 2)] == STORED) || (MESSAGES > 3 && fate[4 * (MESSAGES > 3)] == STORED)))
inline find_next() {
  p = v_cursor + 1;
  do
  :: p <= s_count && !MAY_GO(p) -> p++
  :: else -> break
  od
}
/* The previous number of p (OutgoingSequence.transmit). */
inline find_previous() {
  i = MESSAGES;
  do
  :: i > 0 && !(v_flight & BIT(i)) -> i--
  :: else -> break
  od;
  if
#ifdef BUG_ALWAYS_LINKED_TO_NOTHING
  :: true -> i = 0
#else
#ifdef BUG_NEVER_LINKED_ANEW
  :: true -> i = p - s_base - 1
#else
  :: i > 0 -> i = i - s_base
  :: i == 0 && p > v_highest && !v_fresh -> i = v_acked - s_base
  :: i == 0 && !(p > v_highest && !v_fresh) -> i = 0
#endif
#endif
  fi
}
inline forget_memory() {
  v_acked = s_base; v_highest = s_count; v_cursor = 0; v_flight = 0; v_removing = 0; v_fresh = true
}

/* ---- the sender ------------------------------------------------------------------------- */

/* The application's commit.  A new sequence begins when the old one is complete. */
active proctype Application() {
  do
  :: d_step { s_count < MESSAGES && !v_uncommitted ->
#ifdef BUG_NEW_SEQUENCE_TOO_EARLY
       if :: s_count > s_base && v_flight == 0 -> s_sid++; s_base = s_count; v_acked = s_base; v_highest = s_base
#else
       if :: NONE_STORED && s_count > s_base -> s_sid++; s_base = s_count; v_acked = s_base; v_highest = s_base
#endif
          :: else
       fi;
       s_count++; fate[s_count] = STORED;
#ifdef BUG_TRANSMITTED_BEFORE_COMMIT
       v_uncommitted = true
#endif
     }
#ifdef BUG_TRANSMITTED_BEFORE_COMMIT
  :: v_uncommitted -> v_uncommitted = false
#endif
  od
}

#ifdef BUG_LINKED_BEFORE_REMOVAL
#define MAY_TRANSMIT true
#else
#define MAY_TRANSMIT (v_removing == 0)
#endif

active proctype Transmission() {
  do
  :: d_step { HAS_ROOM(data) && MAY_TRANSMIT -> find_next();
       if
       :: p <= s_count ->
            find_previous();
            v_flight = v_flight | BIT(p); v_fresh = false; v_cursor = p;
            if :: p > v_highest -> v_highest = p :: else fi;
            packet = PACKET(p, s_sid, p - s_base, i);
            PUT(data, packet)
       :: else
       fi; p = 0; i = 0 }
  od
}

/* A new pass: the resend timer ran out, or there is a new session.  For the check that everything
   ends, the timer is patient: a pass is over before the next one begins. */
active proctype Timer() {
  do
  :: d_step { v_flight != 0 ->
#ifdef PATIENT
       find_next();
       if :: p > s_count -> v_flight = 0; v_fresh = true; v_cursor = 0 :: else fi; p = 0
#else
       v_flight = 0; v_fresh = true; v_cursor = 0
#endif
     }
  od
}

/* An order ack arrives. */
active proctype Acknowledgment() {
  byte slot;
  do
  :: atomic { acks[0] != 0 ->
       if :: slot = 0 :: SLOTS > 1 && acks[SLOTS - 1] != 0 -> slot = SLOTS - 1 fi;
       d_step {
         packet = acks[slot];
         if
#ifdef BUG_ACK_OF_ANOTHER_SEQUENCE
         :: s_base + ACK_NUMBER(packet) <= v_highest && s_base + ACK_NUMBER(packet) > v_acked ->
#else
         :: ACK_SID(packet) == s_sid && s_base + ACK_NUMBER(packet) <= v_highest && s_base + ACK_NUMBER(packet) > v_acked ->
#endif
#ifdef BUG_RELEASED_ONE_TOO_MANY
              v_acked = s_base + ACK_NUMBER(packet) + 1;
#else
              v_acked = s_base + ACK_NUMBER(packet);
#endif
#if DISK_LOSSES > 0
              acked = acked | (BIT(v_acked + 1) - 1);
#endif
              v_flight = v_flight & ~(BIT(v_acked + 1) - 1)
         :: else
         fi; packet = 0 };
       if :: doubles > 0 -> SPEND(doubles) :: d_step { TAKE(acks, slot) } fi; slot = 0 }
  od
}

/* The commit that deletes acknowledged messages. */
active proctype Release() {
  do
  :: d_step { (fate[1] == STORED && v_acked >= 1) || (MESSAGES > 1 && fate[2 * (MESSAGES > 1)] == STORED && v_acked >= 2) || (MESSAGES > 2 && fate[3 * (MESSAGES > 2)] == STORED && v_acked >= 3) || (MESSAGES > 3 && fate[4 * (MESSAGES > 3)] == STORED && v_acked >= 4) ->
       p = 1;
       do
       :: p <= v_acked && p <= s_count ->
            if
            :: fate[p] == STORED ->
                 fate[p] = RELEASED;
                 /* No loss: a released message was on the receiver's disk. */
                 assert(ever[p] & BIT(version[p]));
#ifdef CLAIM_DISK_LOSS_LOSES_NOTHING
                 assert(here & BIT(p))
#endif
            :: else
            fi; p++
       :: else -> break
       od; p = 0 }
  od
}

#if EXPIRIES > 0
/* A message expires: it is held back, its removal is committed, then later ones follow. */
active proctype Expiry() {
  byte q;
  do
  :: atomic { expiries > 0 && v_removing == 0 && s_count > 0 && !v_uncommitted ->
       select(q : 1 .. MESSAGES);
       if
       :: q <= s_count && MAY_GO(q) -> expiries--; v_removing = BIT(q);
#ifdef BUG_LINKED_BEFORE_REMOVAL
            v_flight = v_flight & ~v_removing
#endif
       :: else
       fi; q = 0 }
  :: d_step { v_removing != 0 ->
       p = 1;
       do
       :: p <= s_count ->
            if
            :: (v_removing & BIT(p)) && fate[p] == STORED -> fate[p] = DEAD;
#ifdef CLAIM_EXPIRED_MEANS_NOT_DELIVERED
                 assert(!ever[p])
#endif
            :: else
            fi; p++
       :: else -> break
       od; p = 0;
       v_flight = v_flight & ~v_removing; v_removing = 0 }
  od
}
#endif

/* ---- the receiver ----------------------------------------------------------------------- */

/* Whether a message is the next one (IncomingSequence.is_next). */
#ifdef BUG_EVERYTHING_IS_ACCEPTED
#define IS_NEXT(it) true
#else
#ifdef BUG_PREVIOUS_IS_IGNORED
#define IS_NEXT(it) ((SID(it) == v_sid && v_number < NUMBER(it)) || SID(it) > v_sid)
#else
#define IS_NEXT(it) ((SID(it) == v_sid && PREVIOUS(it) <= v_number && v_number < NUMBER(it)) || (SID(it) > v_sid && PREVIOUS(it) == 0))
#endif
#endif

inline acknowledge(sid, number) {
  if
  :: number > 0 && HAS_ROOM(acks) -> packet = ACK(sid, number); PUT(acks, packet)
  :: else
  fi
}

active proctype Arrival() {
  byte slot;
  do
  :: atomic { data[0] != 0 ->
       if :: slot = 0 :: SLOTS > 1 && data[SLOTS - 1] != 0 -> slot = SLOTS - 1 fi;
       d_step {
         packet = data[slot];
         if
         :: IS_NEXT(packet) ->
              p = POSITION(packet);
#if RESTORES == 0
              /* In order and without duplicates: positions only grow. */
              assert(p > v_last);
              /* No later message overtakes a missing one. */
              i = 1;
              do
              :: i < p -> assert(fate[i] != STORED || ((here | pending) & BIT(i)) || IS_ACKED(i)); i++
              :: else -> break
              od;
              /* No message that the sender's disk does not hold. */
              assert(VERSION(packet) == version[p] && !(v_uncommitted && p == s_count));
              i = 0;
#endif
              v_sid = SID(packet); v_number = NUMBER(packet); v_last = p; pending = pending | BIT(p);
#ifdef CLAIM_RESTORE_DOUBLES_NOTHING
              assert(!((here | pending) & BIT(p)) || !(ever[p] & BIT(VERSION(packet))));
#endif
              ever[p] = ever[p] | (BIT(VERSION(packet)) << 2);
#ifdef BUG_ACK_BEFORE_COMMIT
              packet = 0; acknowledge(v_sid, v_number);
#endif
              p = 0
         :: else ->
              /* A duplicate or a gap: repeat the order ack of the durable position. */
#ifndef BUG_REJECTED_IN_SILENCE
              packet = 0; acknowledge(r_sid, r_number)
#endif
         fi; packet = 0 };
       if :: doubles > 0 -> SPEND(doubles) :: d_step { TAKE(data, slot) } fi; slot = 0 }
  od
}

inline keep_pending() {       /* the bits of pending versions become those of stored ones */
  i = 1;
  do
  :: i <= MESSAGES ->
       if :: pending & BIT(i) -> ever[i] = (ever[i] | (ever[i] >> 2)) & 3 :: else fi; i++
  :: else -> break
  od; i = 0; pending = 0
}
inline drop_pending() {
  i = 1;
  do :: i <= MESSAGES -> ever[i] = ever[i] & 3; i++ :: else -> break od; i = 0; pending = 0
}

#ifdef BUG_POSITION_WITHOUT_MESSAGES
bool half = false;
#define IS_NEW (v_sid != r_sid || v_number != r_number || half)
#else
#define IS_NEW (v_sid != r_sid || v_number != r_number)
#endif

/* Position and messages in one commit; then the order ack. */
active proctype Commit() {
  do
  :: d_step { IS_NEW ->
#ifdef BUG_POSITION_WITHOUT_MESSAGES
       if
       :: !half -> r_sid = v_sid; r_number = v_number; r_last = v_last; half = true
       :: else -> half = false; here = here | pending; keep_pending(); acknowledge(r_sid, r_number)
       fi
#else
       r_sid = v_sid; r_number = v_number; r_last = v_last; here = here | pending; keep_pending();
#ifndef BUG_ACK_BEFORE_COMMIT
       acknowledge(r_sid, r_number)
#endif
#endif
     }
  od
}
/* ---- faults ----------------------------------------------------------------------------- */

active proctype Faults() {
  do
  :: d_step { losses > 0 && data[0] != 0 -> SPEND(losses); TAKE(data, 0) }
#if SLOTS > 1
  :: d_step { losses > 0 && data[SLOTS - 1] != 0 -> SPEND(losses); TAKE(data, SLOTS - 1) }
  :: d_step { losses > 0 && acks[SLOTS - 1] != 0 -> SPEND(losses); TAKE(acks, SLOTS - 1) }
#endif
  :: d_step { losses > 0 && acks[0] != 0 -> SPEND(losses); TAKE(acks, 0) }
  :: d_step { s_crashes > 0 && s_count > 0 -> s_crashes--;
       if
       :: v_uncommitted -> fate[s_count] = 0; version[s_count] = 1 - version[s_count];
            s_count--; v_uncommitted = false
       :: else
       fi;
       forget_memory() }
  :: d_step { r_crashes > 0 && (r_sid > 0 || v_sid > 0) -> r_crashes--;
       v_sid = r_sid; v_number = r_number; v_last = r_last;
#ifdef BUG_POSITION_WITHOUT_MESSAGES
       half = false;
#endif
       drop_pending() }
#if DISK_LOSSES > 0
  :: d_step { disk_losses > 0 && r_sid > 0 -> disk_losses--;
       r_sid = 0; r_number = 0; r_last = 0; v_sid = 0; v_number = 0; v_last = 0; here = 0;
       drop_pending() }
#endif
#if RESTORES > 0
  :: d_step { !backed_up && s_count > 0 && s_count < MESSAGES -> backed_up = true;
       b_sid = s_sid; b_base = s_base; b_count = s_count; i = 1;
       do :: i <= MESSAGES -> b_fate[i] = fate[i]; i++ :: else -> break od; i = 0 }
  :: d_step { restores > 0 && backed_up && s_count > b_count -> restores--;
       /* Messages after the backup are lost; others take their positions. */
       i = b_count + 1;
       do :: i <= s_count -> version[i] = 1; i++ :: else -> break od;
       p = s_sid; s_sid = b_sid; s_base = b_base; s_count = b_count; i = 1;
       do :: i <= MESSAGES -> fate[i] = b_fate[i]; i++ :: else -> break od; i = 0;
#ifdef REMEDY_GREATER_SEQUENCE
       s_sid = p + 1;
#endif
       p = 0; forget_memory() }
#endif
  od
}

/* ---- conditions at the end -------------------------------------------------------------- */

#define ENDED(q) (fate[q] == RELEASED || fate[q] == DEAD)
#ifdef PATIENT
/* Every message ends somewhere, if crashes and losses do. */
ltl ends { <> (s_count == MESSAGES && ENDED(1) && ENDED(MESSAGES) && (MESSAGES < 3 || ENDED(2))) }
#endif
