package rlcore

// Refusal is the reason why the guard refuses a combination; the zero value is Allowed.
type Refusal uint8

// The reasons.
const (
	Allowed          Refusal = iota
	RefusedWhole             // a running job holds the whole GPU
	RefusedShares            // fewer shares are free than jobs would join
	RefusedUnknown           // a job without a profile would share
	RefusedNoShare           // a job that must not share would share
	RefusedArray             // a job may share with its own array only
	RefusedUser              // the card serves one user at a time
	RefusedClients           // more members than the card or the guard allows
	RefusedHost              // the node lacks cores or memory
	RefusedMemory            // device memory may run out
	RefusedContract          // a predicted slowdown exceeds a contract
	RefusedForbidden         // the predictor forbids these applications to meet
	RefusedLimit             // a job might not end before its time limit or deadline
	RefusedDue               // a job would end later than promised
	RefusedRank              // one of the jobs may preempt another
	RefusedUnheld            // a job that counts on a memory limit would share a card that has none
	RefusedTurn              // a foreign job would start later than promised
	RefusedLength            // a job would end late if another one takes longer than expected
	RefusedFirstRun          // a job's run is one that shows what its application needs, or whether MPS serves it
)

// refusals holds each reason's stable name, for stored data, and its sentence, for users.
var refusals = [...]struct{ name, sentence string }{
	Allowed:          {"allowed", "allowed"},
	RefusedWhole:     {"whole", "the GPU is taken whole"},
	RefusedShares:    {"shares", "no share of the GPU is free"},
	RefusedUnknown:   {"unknown", "an application without a profile runs alone first"},
	RefusedNoShare:   {"no_share", "a job asks not to share, or can't run under MPS"},
	RefusedArray:     {"array", "a job shares only with tasks of its own array"},
	RefusedUser:      {"user", "this GPU serves one user at a time"},
	RefusedClients:   {"clients", "more jobs than the GPU serves at a time"},
	RefusedHost:      {"host", "the node has not enough free cores or memory"},
	RefusedMemory:    {"memory", "GPU memory would not suffice at some moment"},
	RefusedContract:  {"contract", "a job would slow down more than its contract allows"},
	RefusedForbidden: {"forbidden", "these applications may not run together"},
	RefusedLimit:     {"limit", "a job might not end before its time limit or deadline"},
	RefusedDue:       {"due", "a job would end later than it may"},
	RefusedRank:      {"rank", "jobs of which one may preempt the other don't share"},
	RefusedUnheld:    {"unheld", "this GPU can't hold a job to the memory that was agreed for it"},
	RefusedTurn:      {"turn", "a job of whole GPUs would lose its turn"},
	RefusedLength:    {"length", "a job might take so much longer than expected that another one ends late"},
	RefusedFirstRun: {
		"first_run", "an application's first run under MPS, or with less memory than it takes, is alone on its GPU",
	},
}

// NoRoom reports whether the refusal says that no job could have joined the GPU.
func (r Refusal) NoRoom() bool { return r == RefusedWhole || r == RefusedShares }

// ofPromise reports whether the refusal is the promise's, to whomever, and not one on the combination's own merits.
func (r Refusal) ofPromise() bool { return r == RefusedDue || r == RefusedTurn || r == RefusedLength }

// Refusals is the number of reasons, Allowed among them.
const Refusals = len(refusals)

// Name returns the reason's short name. It never changes, so that stored data stays readable.
func (r Refusal) Name() string { return refusals[r].name }

// String returns the reason as a sentence for users.
func (r Refusal) String() string { return refusals[r].sentence }
