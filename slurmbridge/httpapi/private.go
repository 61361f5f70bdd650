package httpapi

import (
	"context"
	"net"
	"net/http"
	"slices"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

// CredentialHeader carries a MUNGE credential of who asks, with Question as its payload.
const CredentialHeader = "Munge-Credential"

// Question is what the credential of a GET of path carries: it is good for no other.
func Question(path string) string { return "slurmbridge " + http.MethodGet + " " + path }

// Asker tells who asks.
type Asker struct {
	// Decode returns the user whose credential a host sent, and what it carries.
	Decode func(ctx context.Context, host, credential string) (uid uint32, payload string, err error)
	// Trusted may see everything: root, the bridge's own user, and agents.
	Trusted func(uid uint32) bool
	// Name is a user's name, "" = nobody's.
	Name func(uid uint32) string
}

// who returns the user of a request's credential; ok is false where there is none, or one
// that proves nothing.
func (a *Asker) who(req *http.Request) (uid uint32, ok bool) {
	cred := req.Header.Get(CredentialHeader)
	if a == nil || cred == "" {
		return 0, false
	}
	host, _, _ := net.SplitHostPort(req.RemoteAddr)
	uid, payload, err := a.Decode(req.Context(), host, cred)
	return uid, err == nil && payload == Question(req.URL.Path)
}

// may reports whether whoever asks may see what is the given user's, and whether all of it. A
// credential is good once: it is asked once.
func (a *Asker) may(req *http.Request, user string) (may, all bool) {
	uid, ok := a.who(req)
	if !ok {
		return false, false
	}
	all = a.Trusted(uid)
	return all || user != "" && a.Name(uid) == user, all
}

// public is what everybody may see of a status: where Slurm hides jobs of others
// (PrivateData), numbers without users, accounts and applications.
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
	out.Groups = hidden(st.Groups)
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

func hidden(groups []job.Group) []job.Group {
	out := slices.Clone(groups)
	for i := range out {
		out[i].Members = slices.Clone(out[i].Members)
		for k := range out[i].Members {
			out[i].Members[k].User, out[i].Members[k].App = "", ""
		}
	}
	return out
}

func hiddenRuns(runs []history.Run) []history.Run {
	for i := range runs {
		runs[i].User, runs[i].Account, runs[i].App = "", "", ""
	}
	return runs
}

func hiddenOutcomes(outcomes []history.Outcome) []history.Outcome {
	for i := range outcomes {
		outcomes[i].User, outcomes[i].App = "", ""
	}
	return outcomes
}

func hiddenGroups(groups []journal.Grouped) []journal.Grouped {
	for i := range groups {
		groups[i].Group = hidden([]job.Group{groups[i].Group})[0]
	}
	return groups
}
