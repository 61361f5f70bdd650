package job

// Unfit says why the bridge ungates a job that requested sharing: it then runs as it would without
// the bridge. The values are a metric's labels.
type Unfit string

// The reasons.
const (
	UnfitTooLong      Unfit = "too-long"
	UnfitExpedited    Unfit = "expedited"
	UnfitHet          Unfit = "heterogeneous"
	UnfitShares       Unfit = "other-shares"
	UnfitNodes        Unfit = "several-nodes"
	UnfitFeatures     Unfit = "features"
	UnfitReservation  Unfit = "reservation"
	UnfitExclusive    Unfit = "exclusive"
	UnfitNodeList     Unfit = "node-list"
	UnfitAlternatives Unfit = "alternatives"
	UnfitPartition    Unfit = "partition"
	UnfitSize         Unfit = "size"
	UnfitRelease      Unfit = "release"
	UnfitLeft         Unfit = "left"
	UnfitNotStarted   Unfit = "not-started"
	UnfitDeadline     Unfit = "deadline"
	UnfitDelay        Unfit = "delay"
	UnfitTurn         Unfit = "turn"
	UnfitPreempts     Unfit = "preempts"
)

// unfits are the reasons in words.
var unfits = map[Unfit]string{
	UnfitTooLong:      "its request is too long to be read",
	UnfitExpedited:    Cause{Kind: CauseExpedited}.String(),
	UnfitHet:          "a heterogeneous job is left alone",
	UnfitShares:       "its owner requests other shares",
	UnfitNodes:        "it requests several nodes",
	UnfitFeatures:     "it requests node features",
	UnfitReservation:  "it requests a reservation",
	UnfitExclusive:    "it requests exclusive nodes",
	UnfitNodeList:     "it requests several nodes by name",
	UnfitAlternatives: "its dependencies are alternatives",
	UnfitPartition:    "its partition is left alone",
	UnfitSize:         "no node of its partition with a GPU is large enough",
	UnfitRelease:      "this release of Slurm could give a GPU that it shares to a job of a whole GPU as well: see slurmbridge doctor",
	UnfitLeft:         "left to Slurm",
	UnfitNotStarted:   "it was released twice and did not start",
	UnfitDeadline:     "its deadline leaves no time to wait",
	UnfitTurn:         "a job behind it that doesn't share would take its GPU first",
	UnfitPreempts:     "no GPU is idle for it, and Slurm may preempt jobs for it",
	UnfitDelay:        "the bridge has kept it waiting long enough",
}

// Unfits lists the reasons.
func Unfits() []Unfit {
	out := make([]Unfit, 0, len(unfits))
	for u := range unfits {
		out = append(out, u)
	}
	return out
}

// String is the reason in words.
func (u Unfit) String() string { return unfits[u] }
