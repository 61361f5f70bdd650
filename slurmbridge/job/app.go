package job

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// App is a job's application.
type App struct {
	Key string
	// Profile is that of the GPU model on which the application is fastest; nil = no complete run is known.
	Profile *rlcore.Profile
	// Cards holds the profile on each GPU model of the cluster, nil where none is known; Cards is nil where there is one
	// model.
	Cards map[string]*rlcore.Profile
}

// UnseenCard is the model of a GPU that no record has named and that may differ from all others.
const UnseenCard = "?"

// On is the application's profile on a GPU model, nil = none is known; model "" = on any.
func (a *App) On(card string) *rlcore.Profile {
	switch {
	case a.Profile == nil || card == "" || a.Profile.Card == "":
		return a.Profile
	case card == UnseenCard:
		return nil
	case a.Cards == nil:
		return a.Profile
	}
	return a.Cards[card]
}

// Complete reports whether a profile is known on each GPU model.
func (a *App) Complete() bool {
	return a.Profile != nil && !slices.Contains(slices.Collect(maps.Values(a.Cards)), nil)
}

// NameCards completes the models of GPUs, as records named them, for all GPUs of the nodes: one that no record has named
// is of the only model that has its gres type, else an UnseenCard. Where no record has named any, all are "".
func NameCards(seen map[GPUAddr]string, nodes []Node) map[GPUAddr]string {
	out := map[GPUAddr]string{}
	if len(seen) == 0 {
		return out
	}
	ofType := map[string]string{}
	each := func(f func(at GPUAddr, typ string)) {
		for i := range nodes {
			for g := range nodes[i].GPUs {
				f(GPUAddr{nodes[i].Name, g}, nodes[i].Card(g).Type)
			}
		}
	}
	each(func(at GPUAddr, typ string) {
		card := seen[at]
		if card == "" {
			return
		}
		out[at] = card
		if other, known := ofType[typ]; known && other != card {
			card = UnseenCard
		}
		ofType[typ] = card
	})
	each(func(at GPUAddr, typ string) {
		if out[at] == "" {
			out[at] = UnseenCard
			if card := ofType[typ]; card != "" {
				out[at] = card
			}
		}
	})
	return out
}

// CardNames are the different models that records have named.
func CardNames(of map[GPUAddr]string) []string {
	all := slices.Compact(slices.Sorted(maps.Values(of)))
	return slices.DeleteFunc(all, func(card string) bool { return card == UnseenCard })
}

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
	UnfitNoRule       Unfit = "no-rule"
	UnfitPerGPU       Unfit = "per-gpu-defaults"
	UnfitUnknown      Unfit = "unknown-application"
	UnfitFull         Unfit = "no-room"
	UnfitBroken       Unfit = "was-slower"
	UnfitNoPartner    Unfit = "no-partner"
	UnfitGPULimit     Unfit = "gpu-limit"
	UnfitUnbilled     Unfit = "unbilled"
	UnfitUnshared     Unfit = "unshared-gpus"
	UnfitPromised     Unfit = "has-deadline"
	UnfitRuleInShadow Unfit = "rule-in-shadow"
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
	UnfitNoRule:       "no rule of the site adopts it",
	UnfitPerGPU:       "its partition has defaults per GPU (DefCpuPerGPU, DefMemPerGPU), and Slurm would refuse to make it share",
	UnfitUnknown:      "it didn't ask to share, and its application has not run alone yet",
	UnfitFull:         "it didn't ask to share, and its application leaves too little of a GPU",
	UnfitBroken:       "it didn't ask to share, and its application was slower than its contract within the last week",
	UnfitUnbilled:     "it didn't ask to share, and its partition bills GPUs and no shares of one",
	UnfitUnshared:     "it didn't ask to share, and may have a GPU without shares",
	UnfitPromised:     "it didn't ask to share, and has a deadline",
	UnfitRuleInShadow: "it didn't ask to share, and the rule of the site that matches it is in shadow (adopt_mode)",
	UnfitGPULimit:     "it didn't ask to share, and Slurm would not count its shares under a limit on GPUs",
	UnfitNoPartner:    "it didn't ask to share, and has a GPU of its own: no job fits next to it now",
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

// mostOfScript is how much of a script is kept, bytes.
const mostOfScript = 256 << 10

// ShortScript is a script that fits into memory with many others. What is beyond its first part still counts, as a hash.
func ShortScript(script []byte) []byte {
	if len(script) <= mostOfScript {
		return script
	}
	return fmt.Appendf(slices.Clone(script[:mostOfScript]), "\n%x", sha256.Sum256(script[mostOfScript:]))
}
