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
	// Profile is the application's on the GPU model where it is fastest; nil = no complete run is known.
	Profile *rlcore.Profile
	// ByModel holds the profile on each GPU model of the cluster, nil where none is known; it is nil where there is one
	// model.
	ByModel map[string]*rlcore.Profile
}

// UnseenModel is the model of a GPU that no record has named and that may differ from all others.
const UnseenModel = "?"

// On returns the application's profile on a GPU model, nil = none is known; model "" = any model.
func (a *App) On(card string) *rlcore.Profile {
	switch {
	case a.Profile == nil || card == "" || a.Profile.Model == "":
		return a.Profile
	case card == UnseenModel:
		return nil
	case a.ByModel == nil:
		return a.Profile
	}
	return a.ByModel[card]
}

// Complete reports whether a profile is known on each GPU model.
func (a *App) Complete() bool {
	return a.Profile != nil && !slices.Contains(slices.Collect(maps.Values(a.ByModel)), nil)
}

// NameModels completes the models of GPUs, as records named them, for all GPUs of the nodes: one that no record has
// named is of the only model that has its gres type, else an UnseenModel. Where no record has named any, all are "".
func NameModels(seen map[GPUAddr]string, nodes []Node) map[GPUAddr]string {
	out := map[GPUAddr]string{}
	if len(seen) == 0 {
		return out
	}
	ofType := map[string]string{}
	each := func(f func(at GPUAddr, typ string)) {
		for i := range nodes {
			for g := range nodes[i].GPUs {
				f(GPUAddr{nodes[i].Name, g}, nodes[i].GPU(g).Type)
			}
		}
	}
	each(func(at GPUAddr, typ string) {
		card := seen[at]
		is, typed := InstanceOf(typ)
		was, _ := InstanceOf(card)
		if card == "" || typed && was.Profile != is.Profile { // or it was cut in another way then
			return
		}
		out[at] = card
		if other, known := ofType[typ]; known && other != card {
			card = UnseenModel
		}
		ofType[typ] = card
	})
	each(func(at GPUAddr, typ string) {
		if out[at] == "" {
			out[at] = UnseenModel
			if card := ofType[typ]; card != "" {
				out[at] = card
			}
		}
	})
	return out
}

// ModelNames lists the GPU models that records have named, each once.
func ModelNames(of map[GPUAddr]string) []string {
	all := slices.Compact(slices.Sorted(maps.Values(of)))
	return slices.DeleteFunc(all, func(card string) bool { return card == UnseenModel })
}

// Ungated says why the bridge ungates a job that requested sharing: it then runs as it would without
// the bridge. The values are a metric's labels.
type Ungated string

// ungatedFor are the reasons in words.
var ungatedFor = map[Ungated]string{}

func ungated(label Ungated, words string) Ungated {
	ungatedFor[label] = words
	return label
}

// The reasons.
var (
	UngatedTooLong     = ungated("too-long", "its request is too long to be read")
	UngatedExpedited   = ungated("expedited", CauseExpedited.String())
	UngatedHet         = ungated("heterogeneous", "a heterogeneous job is left alone")
	UngatedShares      = ungated("other-shares", "its owner requests other shares")
	UngatedNodes       = ungated("several-nodes", "it requests several nodes")
	UngatedFeatures    = ungated("features", "it requests node features")
	UngatedPrefers     = ungated("prefers", "it prefers nodes of some features (--prefer)")
	UngatedReservation = ungated("reservation", "it requests a reservation")
	UngatedWholeNodes  = ungated("whole-nodes",
		"it takes whole nodes, by --exclusive or by its partition (OverSubscribe=EXCLUSIVE)")
	UngatedExclusive    = ungated("exclusive", "it keeps other users, or jobs of another label, off its node")
	UngatedNodeList     = ungated("node-list", "it requests several nodes by name")
	UngatedAlternatives = ungated("alternatives", "its dependencies are alternatives")
	UngatedPartition    = ungated("partition", "its partition is left alone")
	UngatedSize         = ungated("size", "no node of its partition with a GPU is large enough")
	UngatedRelease      = ungated("release",
		"this release of Slurm takes a GPU in use by shares for free, for jobs of whole GPUs: see slurmbridge doctor")
	UngatedLeft       = ungated("left", "left to Slurm")
	UngatedNotStarted = ungated("not-started", "it was released twice and did not start")
	UngatedDeadline   = ungated("deadline", "its deadline leaves no time to wait")
	UngatedDelay      = ungated("delay", "the bridge has kept it waiting long enough")
	UngatedTurn       = ungated("turn", "a job behind it that doesn't share would take its GPU first")
	UngatedPreempts   = ungated("preempts", "no GPU is idle for it, and Slurm may preempt jobs for it")
	UngatedDrawn      = ungated("magnetic-reservation",
		"no GPU is idle for it, and Slurm may start it in a reservation that it doesn't ask for (MAGNETIC)")
	UngatedNoRule = ungated("no-rule", "no rule of the site adopts it")
	UngatedPerGPU = ungated("per-gpu-defaults",
		"its partition has defaults per GPU (DefCpuPerGPU, DefMemPerGPU), and Slurm would refuse to make it share")
	UngatedUnknown = ungated("unknown-application", "it didn't ask to share, and its application has not run alone yet")
	UngatedFull    = ungated("no-room", "it didn't ask to share, and its application leaves too little of a GPU")
	UngatedBroken  = ungated("was-slower",
		"it didn't ask to share, and its application was slower than its contract within the last week")
	UngatedNoPartner = ungated("no-partner",
		"it didn't ask to share, and has a GPU of its own: no job fits next to it now")
	UngatedGPULimit = ungated("gpu-limit",
		"it didn't ask to share, and Slurm would not count its shares under a limit on GPUs")
	UngatedUnbilled     = ungated("unbilled", "it didn't ask to share, and its partition bills GPUs and no shares of one")
	UngatedUnshared     = ungated("unshared-gpus", "it didn't ask to share, and may have a GPU without shares")
	UngatedPromised     = ungated("has-deadline", "it didn't ask to share, and has a deadline")
	UngatedRuleInShadow = ungated("rule-in-shadow",
		"it didn't ask to share, and the rule of the site that matches it is in shadow (adopt_mode)")
)

// UngatedReasons lists the reasons.
func UngatedReasons() []Ungated { return slices.Collect(maps.Keys(ungatedFor)) }

// String returns the reason in words.
func (u Ungated) String() string { return ungatedFor[u] }

// mostOfScript is the length of the part of a script that is kept, bytes.
const mostOfScript = 256 << 10

// ShortScript shortens a script so that many fit into memory: its first mostOfScript bytes and a hash of the rest.
func ShortScript(script []byte) []byte {
	if len(script) <= mostOfScript {
		return script
	}
	return fmt.Appendf(slices.Clone(script[:mostOfScript]), "\n%x", sha256.Sum256(script[mostOfScript:]))
}
