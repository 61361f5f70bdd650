package httpapi

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

// mask is what a viewer sees of jobs: the viewer's own as they are, others' under names that are good for one answer,
// so that it still shows which GPU has how many jobs.
type mask struct {
	viewer
	own    map[string]bool   // the viewer's jobs, by ref
	others map[string]string // names of others' jobs, by ref
}

func newMask(who viewer) *mask {
	return &mask{viewer: who, own: map[string]bool{}, others: map[string]string{}}
}

// other begins the name of a job that the viewer may not see.
const other = "other "

// add takes down whose a job is.
func (m *mask) add(ref, user string) {
	if m.user != "" && user == m.user {
		m.own[ref] = true
	}
}

// ref is what an answer calls a job. One whose user isn't known is another's.
func (m *mask) ref(ref string) string {
	if m.own[ref] || ref == "" {
		return ref
	}
	name := m.others[ref]
	if name == "" {
		name = other + strconv.Itoa(len(m.others)+1)
		m.others[ref] = name
	}
	return name
}

func (m *mask) refs(all []string) []string {
	if all == nil {
		return nil
	}
	out := make([]string, len(all))
	for i := range all {
		out[i] = m.ref(all[i])
	}
	return out
}

// status is what the viewer may see of a status.
func (m *mask) status(st *job.Status) *job.Status {
	if st == nil || st.Snap == nil || m.all {
		return st
	}
	out := &job.Status{
		At: st.At, Mode: st.Mode, Policy: st.Policy, Model: st.Model, Wanted: st.Wanted, Objective: st.Objective,
		Gate: st.Gate, GateAccount: st.GateAccount, GateErr: st.GateErr, Standby: st.Standby, Misread: st.Misread,
		Lease: st.Lease, Waiting: st.Waiting, Window: st.Window, Err: st.Err, MaxDelayS: st.MaxDelayS,
		KeptOut: st.KeptOut, StoppedRules: st.StoppedRules, Unmanaged: mine(m, st.Unmanaged), Apps: map[string]job.App{},
	}
	for _, r := range st.Refused {
		if r.Example = m.ref(r.Example); r.Code == job.CodeOther {
			r.Text = "an error without a name" // which may quote a user
		}
		out.Refused = append(out.Refused, r)
	}
	snap := *st.Snap
	snap.Jobs = slices.Clone(snap.Jobs)
	m.noteOwners(st)
	for i := range snap.Jobs {
		if j := &snap.Jobs[i]; !m.own[j.Ref] {
			snap.Jobs[i] = job.Job{
				Ref: m.ref(j.Ref), State: j.State, Start: j.Start, Nodes: j.Nodes, GPUs: j.GPUs,
				Request: job.GPURequest{Kind: j.Request.Kind, Count: j.Request.Count},
			}
		}
	}
	out.Snap = &snap
	for ref, app := range st.Apps {
		if !m.own[ref] {
			app = job.App{Profile: app.Profile} // how long it takes is no name
		}
		out.Apps[m.ref(ref)] = app
	}
	for i := range st.Groups {
		out.Groups = append(out.Groups, m.group(st.Groups[i]))
	}
	if st.Plan != nil { // shadow mode draws its groups
		out.Plan = &job.Plan{At: st.Plan.At}
		for i := range st.Plan.Groups {
			out.Plan.Groups = append(out.Plan.Groups, job.PlannedGroup{Group: m.group(st.Plan.Groups[i].Group)})
		}
	}
	out.Explanations = mine(m, st.Explanations)
	for ref, e := range out.Explanations {
		out.Explanations[ref] = m.explanation(e)
	}
	for _, ref := range st.WithoutMPS {
		if m.own[ref] {
			out.WithoutMPS = append(out.WithoutMPS, ref)
		}
	}
	out.Idle = slices.DeleteFunc(slices.Clone(st.Idle), func(i job.Idle) bool { return !m.own[i.Ref] })
	return out
}

// noteOwners notes whose the jobs of a status are.
func (m *mask) noteOwners(st *job.Status) {
	if st == nil || st.Snap == nil {
		return
	}
	for i := range st.Snap.Jobs {
		m.add(st.Snap.Jobs[i].Ref, st.Snap.Jobs[i].User)
	}
	for i := range st.Snap.Jobs {
		m.ref(st.Snap.Jobs[i].Ref) // so that text knows it
	}
}

// mine is the part of a map by ref that is the viewer's.
func mine[V any](m *mask, all map[string]V) map[string]V {
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(ref string, _ V) bool { return !m.own[ref] })
	return out
}

// group returns a group with the members that the viewer may see.
func (m *mask) group(g job.Group) job.Group {
	if m.all {
		return g
	}
	g.Members = slices.Clone(g.Members)
	for i := range g.Members {
		x := &g.Members[i]
		if m.add(x.Ref, x.User); !m.own[x.Ref] {
			g.Members[i] = job.Member{Ref: m.ref(x.Ref), State: x.State, Predicted: x.Predicted}
		}
	}
	return g
}

// explanation returns that of a job of the viewer's.
func (m *mask) explanation(e *job.Explanation) *job.Explanation {
	out := *e
	out.Considered, out.Refused = slices.Clone(e.Considered), slices.Clone(e.Refused)
	for i := range out.Considered {
		out.Considered[i].Jobs = m.refs(out.Considered[i].Jobs)
	}
	for i := range out.Refused {
		out.Refused[i] = m.refusal(&out.Refused[i])
	}
	out.Status = m.text(out.Status)
	return &out
}

// number is a job's, in a sentence.
var number = regexp.MustCompile(`\b\d+(_\d+)?\b`)

// text returns a sentence of ours without the numbers of others' jobs that are known.
func (m *mask) text(s string) string {
	return number.ReplaceAllStringFunc(s, func(word string) string {
		if name := m.others[word]; name != "" {
			return name
		}
		return word
	})
}

// refusal returns one whose company isn't named: a refusal that was read back is a sentence.
func (m *mask) refusal(r *job.Refusal) (out job.Refusal) {
	text := r.String()
	if at := strings.Index(text, " on "); strings.HasPrefix(text, "with ") && at > 0 {
		names := strings.Split(text[len("with "):at], ", ")
		text = "with " + strings.Join(m.refs(names), ", ") + text[at:]
	}
	_ = out.UnmarshalText([]byte(m.text(text))) // it returns no error
	return out
}

// story removes from a job's story what it says of others' jobs.
func (m *mask) story(s *journal.Story, ref string) {
	if m.all {
		return
	}
	m.own[ref] = true
	if s.On != nil {
		s.On.With = m.refs(s.On.With)
	}
	for i := range s.Groups {
		s.Groups[i] = m.group(s.Groups[i])
	}
	// Where slurmctld lost its state another job had this number before.
	s.Outcomes = slices.DeleteFunc(s.Outcomes, func(o history.Told) bool { return o.User != m.user })
	for i := range s.Outcomes {
		m.told(&s.Outcomes[i])
	}
	if s.Note != nil {
		s.Note = m.explanation(s.Note)
	}
}

// told hides other users' jobs in the outcome of one of the viewer's jobs.
func (m *mask) told(o *history.Told) {
	for i := range min(len(o.With), len(o.Others)) {
		m.add(o.With[i], o.Others[i].Owner)
	}
	o.With = m.refs(o.With)
	o.Others, o.Blamed, o.Lesson, o.Suspect = nil, nil, nil, ""
}

// ForOwner removes from an outcome what its owner may not see where Slurm hides jobs.
func ForOwner(o *history.Told) { newMask(viewer{user: o.User}).told(o) }

// past hides the runs and outcomes of others. They count, and are drawn.
func (m *mask) past(h *past) {
	if m.all {
		return
	}
	h.runs = slices.Clone(h.runs)
	for i := range h.runs {
		m.add(h.runs[i].Ref, h.runs[i].User)
	}
	for i := range h.runs {
		r := &h.runs[i]
		if o := r.Outcome; o != nil && (o.User != m.user || m.user == "") {
			hidden := *o
			hidden.Ref, hidden.User, hidden.App = m.ref(o.Ref), "", ""
			r.Outcome = &hidden
		}
		if !m.own[r.Ref] {
			*r = history.Run{
				Ref: m.ref(r.Ref), Start: r.Start, End: r.End, Node: r.Node, GPUs: r.GPUs, Shares: r.Shares, Outcome: r.Outcome,
			}
		}
	}
}
