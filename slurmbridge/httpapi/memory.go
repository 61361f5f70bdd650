package httpapi

import (
	"context"
	"fmt"
	"net/http"
)

// MemoryPath is where a node's prolog requests a job's memory limit: GET, with ?user= if it knows
// the job's owner.
const MemoryPath = "/v1/memory/{job}"

// Memory answers with the memory limit of a job that shares a GPU.
type Memory struct {
	// Limit returns what a job of a user's is held to, MiB; 0 = it isn't, or isn't known.
	Limit func(ctx context.Context, ref, user string) (mib int64, err error)
	// Asker identifies the sender: only nodes get an answer.
	Asker *Asker
}

// MemoryReport is the answer; 0 = the job isn't held to anything.
type MemoryReport struct {
	MiB int64 `json:"mib"`
}

// ServeHTTP answers a GET of MemoryPath.
func (m *Memory) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ref := req.PathValue("job")
	if !validRef(ref) {
		http.Error(w, "a job is named 123 or 120_4", http.StatusBadRequest)
		return
	}
	who, err := m.Asker.who(req)
	if err == nil && !m.Asker.Trusted(who.UID) {
		err = fmt.Errorf("user %d may not", who.UID)
	}
	if err != nil {
		http.Error(w, "a node's prolog asks, with a credential of root's: "+err.Error(), http.StatusUnauthorized)
		return
	}
	mib, err := m.Limit(req.Context(), ref, req.URL.Query().Get("user"))
	if err != nil {
		http.Error(w, "the journal can't be read", http.StatusInternalServerError)
		return
	}
	reply(w, MemoryReport{mib})
}
