package job

import (
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
