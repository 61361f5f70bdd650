package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"

	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Question is what the credential of a GET of path carries: it is good for no other.
func Question(path string) string { return "slurmbridge " + http.MethodGet + " " + path }

// Asker identifies the user of a request.
type Asker struct {
	// Header carries the user's credential, with Question as its payload.
	Header string
	// Decode checks a credential that a host sent.
	Decode func(ctx context.Context, host, cred string) (*credential.Credential, error)
	// Hint says what to do about an error of Decode's.
	Hint func(error) string
	// Trusted may see everything: root, the bridge's own user, and agents.
	Trusted func(uid uint32) bool
	// Name is a user's name, "" = not known.
	Name func(uid uint32) string
}

// errNobody: a request has no credential, or one for another question.
var errNobody = errors.New("the question comes without a credential for it")

// who returns a request's credential. Its error goes into the answer, so it leaves out what exactly
// fails on the controller.
func (a *Asker) who(req *http.Request) (*credential.Credential, error) {
	if a == nil || req.Header.Get(a.Header) == "" {
		return nil, errNobody
	}
	host, _, _ := net.SplitHostPort(req.RemoteAddr)
	c, err := a.Decode(req.Context(), host, req.Header.Get(a.Header))
	switch {
	case errors.Is(err, credential.ErrDown):
		return nil, fmt.Errorf("the controller can't check credentials; there: %s", a.Hint(err))
	case err != nil && a.Hint(err) != "":
		return nil, fmt.Errorf("%w: %s", err, a.Hint(err))
	case err != nil:
		return nil, err
	case c.Payload != Question(req.URL.Path):
		return nil, errNobody
	}
	return c, nil
}

// may reports whether the request's user may see data of the given user, and whether all data; err
// says why the user can't be identified. A credential is valid once, so it is checked once.
func (a *Asker) may(req *http.Request, user string) (may, all bool, err error) {
	c, err := a.who(req)
	if err != nil {
		return false, false, err
	}
	all = a.Trusted(c.UID)
	return all || user != "" && a.user(c) == user, all, nil
}

// user is the name in the credential, "" = none. The controller may not know the users that Slurm's
// tokens name (use_client_ids).
func (a *Asker) user(c *credential.Credential) string {
	if c.User != "" {
		return c.User
	}
	return a.Name(c.UID)
}

// public is the part of a status that every user may see: where Slurm hides jobs (PrivateData),
// numbers without users, accounts and applications.
func public(st *job.Status) *job.Status {
	if st == nil || st.Snap == nil || !st.Snap.PrivateJobs {
		return st
	}
	out, snap := *st, *st.Snap
	snap.Jobs = slices.Clone(snap.Jobs)
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		j.User, j.Account, j.Comment = "", "", ""
	}
	out.Snap = &snap
	out.Groups = slices.Clone(st.Groups)
	for i := range out.Groups {
		hide(&out.Groups[i])
	}
	if st.Plan != nil { // shadow mode draws its groups
		plan := *st.Plan
		plan.Groups = hidden(plan.Groups)
		out.Plan = &plan
	}
	out.Apps = make(map[string]job.App, len(st.Apps))
	for ref, a := range st.Apps {
		out.Apps[ref] = job.App{Profile: a.Profile} // how long it takes is no name
	}
	out.Explanations = make(map[string]*job.Explanation, len(st.Explanations))
	for ref, e := range st.Explanations {
		one := *e
		one.App = ""
		out.Explanations[ref] = &one
	}
	return &out
}

func hidden(groups []job.PlannedGroup) []job.PlannedGroup {
	groups = slices.Clone(groups)
	for i := range groups {
		hide(&groups[i].Group)
	}
	return groups
}

// hide removes the users and applications of a group's members, and the rules, which may name them.
func hide(g *job.Group) {
	g.Members = slices.Clone(g.Members)
	for k := range g.Members {
		g.Members[k].User, g.Members[k].App, g.Members[k].Rule = "", "", ""
	}
}

// MemoryPath is where a node's prolog requests a job's memory limit: GET, with ?user= if it knows
// the job's owner.
const MemoryPath = "/v1/memory/{job}"

// Memory answers with the memory limit of a job that shares a GPU.
type Memory struct {
	// Limit returns what a job of a user's is held to; nothing if it isn't, or isn't known.
	Limit func(ctx context.Context, ref, user string) (MemoryReport, error)
	// Asker identifies the sender: only nodes get an answer.
	Asker *Asker
}

// MemoryReport is the answer: what each of the job's processes may hold, and what they may hold together, MiB; 0 = the job
// isn't held to anything.
type MemoryReport struct {
	MiB    int64 `json:"mib"`
	JobMiB int64 `json:"job_mib,omitempty"`
}

// ServeHTTP answers a GET of MemoryPath.
func (m *Memory) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ref := req.PathValue("job")
	if !validRef(ref) {
		http.Error(w, "a job is named 123 or 120_4", http.StatusBadRequest)
		return
	}
	if err := (parameters{"user": 1}).check(req.URL.RawQuery); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
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
	limit, err := m.Limit(req.Context(), ref, req.URL.Query().Get("user"))
	if err != nil {
		http.Error(w, "the journal can't be read", http.StatusInternalServerError)
		return
	}
	reply(w, limit)
}
