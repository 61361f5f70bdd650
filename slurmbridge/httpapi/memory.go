package httpapi

import (
	"context"
	"math"
	"net/http"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// MemoryPath is where a node's prolog asks how much memory a job is to have: GET, with
// ?user= where it knows whose the job is. A job that nothing is known of is not found.
const MemoryPath = "/v1/memory/{job}"

// Memory answers with the memory limit of a job that shares a GPU.
type Memory struct {
	// Profile returns what is known of a job's application; nil = nothing, or the job is
	// not that user's ("" = anybody's).
	Profile func(ctx context.Context, ref, user string) (*rlcore.Profile, error)
	// Margin is what a job may take beyond what it was seen to need, as a fraction.
	Margin float64
	// Asker tells who asks: nodes alone are answered.
	Asker *Asker
}

// MemoryReport is the answer.
type MemoryReport struct {
	MiB int64 `json:"mib"`
}

// leastMargin is for what no setting may take away: a limit too low fails a job that did
// nothing wrong. It is also more than 2^20/10^6, whichever a driver takes M for.
const leastMargin = 0.05

// MemoryLimit is the most memory that a job of an application is to have, MiB: the
// highest of its profile and a margin, which is a fraction of that. ok is false where
// the profile gives none.
func MemoryLimit(p *rlcore.Profile, margin float64) (mib int64, ok bool) {
	// A series keeps its peaks and a profile the larger memory of its runs, so this is
	// the highest quantile of all that was seen.
	v := math.Ceil(p.Peak().MemMiB * (1 + max(margin, leastMargin)))
	if !(v >= 1 && v < 1<<40) { // not NaN either; the exact whole numbers end far beyond
		return 0, false
	}
	return int64(v), true
}

// ServeHTTP answers a GET of MemoryPath.
func (m *Memory) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ref := req.PathValue("job")
	if !validRef(ref) {
		http.Error(w, "a job is named 123 or 120_4", http.StatusBadRequest)
		return
	}
	if uid, ok := m.Asker.who(req); !ok || !m.Asker.Trusted(uid) {
		http.Error(w, "a node's prolog asks with a MUNGE credential of root's", http.StatusUnauthorized)
		return
	}
	p, err := m.Profile(req.Context(), ref, req.URL.Query().Get("user"))
	if err != nil {
		http.Error(w, "the profiles can't be read", http.StatusInternalServerError)
		return
	}
	if p != nil {
		if mib, ok := MemoryLimit(p, m.Margin); ok {
			reply(w, MemoryReport{mib})
			return
		}
	}
	http.Error(w, "no profile is known of this job's application", http.StatusNotFound)
}
