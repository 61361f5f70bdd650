package rlcore

// Veto is the reason why the guard refuses a combination; the zero value is Allowed.
type Veto uint8

// The reasons.
const (
	Allowed       Veto = iota
	VetoWhole          // a running job holds the whole GPU
	VetoShares         // fewer shares are free than jobs would join
	VetoUnknown        // a job without a profile would share
	VetoNoShare        // a job that must not share would share
	VetoArray          // a job may share with its own array only
	VetoUser           // the card serves one user at a time
	VetoClients        // more members than the card or the guard allows
	VetoHost           // the node lacks cores or memory
	VetoMemory         // device memory may run out
	VetoContract       // a predicted slowdown exceeds a contract
	VetoForbidden      // the predictor forbids these applications to meet
	VetoLimit          // a job might not end before its time limit or deadline
	VetoDue            // a job would end later than promised
	VetoRank           // one of the jobs may preempt another
	VetoUnheld         // a job that counts on a memory limit would share a card that has none
	VetoTurn           // a foreign job would start later than promised
	VetoLength         // a job would end late if another one takes longer than expected
	VetoFirstRun       // a job's run is one that shows what its application needs, or whether MPS serves it
)

// vetoes holds each reason's stable name, for stored data, and its sentence, for users.
var vetoes = [...]struct{ name, sentence string }{
	Allowed:       {"allowed", "allowed"},
	VetoWhole:     {"whole", "the GPU is taken whole"},
	VetoShares:    {"shares", "no share of the GPU is free"},
	VetoUnknown:   {"unknown", "an application without a profile runs alone first"},
	VetoNoShare:   {"no_share", "a job asks not to share, or can't run under MPS"},
	VetoArray:     {"array", "a job shares only with tasks of its own array"},
	VetoUser:      {"user", "this GPU serves one user at a time"},
	VetoClients:   {"clients", "more jobs than the GPU serves at a time"},
	VetoHost:      {"host", "the node has not enough free cores or memory"},
	VetoMemory:    {"memory", "GPU memory would not suffice at some moment"},
	VetoContract:  {"contract", "a job would slow down more than its contract allows"},
	VetoForbidden: {"forbidden", "these applications may not run together"},
	VetoLimit:     {"limit", "a job might not end before its time limit or deadline"},
	VetoDue:       {"due", "a job would end later than it may"},
	VetoRank:      {"rank", "jobs of which one may preempt the other don't share"},
	VetoUnheld:    {"unheld", "this GPU can't hold a job to the memory that was agreed for it"},
	VetoTurn:      {"turn", "a job of whole GPUs would lose its turn"},
	VetoLength:    {"length", "a job might take so much longer than expected that another one ends late"},
	VetoFirstRun: {
		"first_run", "an application's first run under MPS, or with less memory than it takes, is alone on its GPU",
	},
}

// NoRoom reports whether the refusal says that no job could have joined the GPU.
func (r Veto) NoRoom() bool { return r == VetoWhole || r == VetoShares }

// ofPromise reports whether the refusal is the promise's, to whomever, and not one on the combination's own merits.
func (r Veto) ofPromise() bool { return r == VetoDue || r == VetoTurn || r == VetoLength }

// Vetoes is the number of reasons, Allowed among them.
const Vetoes = len(vetoes)

// Name returns the reason's short name. It never changes, so that stored data stays readable.
func (r Veto) Name() string { return vetoes[r].name }

// String returns the reason as a sentence for users.
func (r Veto) String() string { return vetoes[r].sentence }
