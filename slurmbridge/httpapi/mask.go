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

// mask hides other users' jobs from a viewer. The viewer's own jobs keep their names. Other jobs get names for one
// answer, so that it still shows how many jobs each GPU has.
type mask struct {
	viewer
	own    map[string]bool   // the viewer's jobs, by ref
	others map[string]string // the names for other users' jobs, by ref
}

// newMask returns a mask that knows the owners of a status's jobs; st may be nil.
func newMask(who viewer, st *job.Status) *mask {
	m := &mask{viewer: who, own: map[string]bool{}, others: map[string]string{}}
	if st == nil || st.Snap == nil || m.all {
		return m
	}
	for i := range st.Snap.Jobs {
		m.add(st.Snap.Jobs[i].Ref, st.Snap.Jobs[i].User)
	}
	for i := range st.Snap.Jobs {
		m.ref(st.Snap.Jobs[i].Ref) // registers the name for text
	}
	return m
}

// other is the beginning of the name of a hidden job.
const other = "other "

// owns reports whether the viewer may see a user's jobs.
func (m *mask) owns(user string) bool { return m.all || m.user != "" && user == m.user }

func (m *mask) add(ref, user string) {
	if m.owns(user) {
		m.own[ref] = true
	}
}

// ref returns the name of a job in the answer. A job with an unknown user counts as another user's.
func (m *mask) ref(ref string) string {
	if m.all || m.own[ref] || ref == "" {
		return ref
	}
	if m.others[ref] == "" {
		m.others[ref] = other + strconv.Itoa(len(m.others)+1)
	}
	return m.others[ref]
}

func (m *mask) refs(all []string) (out []string) {
	for _, ref := range all {
		out = append(out, m.ref(ref))
	}
	return out
}

// describe returns a job's number, user and application, if the viewer may see them.
func (m *mask) describe(ref, user, app string) string {
	if !m.owns(user) {
		return "another user's job"
	}
	return strings.Join(slices.DeleteFunc([]string{"job " + ref, user, app}, func(s string) bool { return s == "" }), ", ")
}

// status returns the parts of a status that the viewer may see.
func (m *mask) status(st *job.Status) job.Status {
	if m.all {
		return *st
	}
	out := job.Status{
		At: st.At, Mode: st.Mode, Policy: st.Policy, Model: st.Model, Gate: st.Gate,
		GateAccount: st.GateAccount, GateErr: st.GateErr, Standby: st.Standby, Misread: st.Misread, Waiting: st.Waiting,
		Err: st.Err, MaxDelayS: st.MaxDelayS, Unmanaged: maps.Clone(st.Unmanaged), WithoutMPS: slices.Clone(st.WithoutMPS),
		Harm: st.Harm, Shareable: st.Shareable,
	}
	for _, r := range st.Refused {
		if r.Example = m.ref(r.Example); r.Code == job.CodeOther {
			r.Text = "an error without a name" // its text may quote a user
		}
		out.Refused = append(out.Refused, r)
	}
	for i := range st.Groups {
		out.Groups = append(out.Groups, m.group(st.Groups[i]))
	}
	maps.DeleteFunc(out.Unmanaged, func(ref, _ string) bool { return !m.own[ref] })
	out.WithoutMPS = slices.DeleteFunc(out.WithoutMPS, func(ref string) bool { return !m.own[ref] })
	return out
}

// group returns a group with the members that the viewer may see.
func (m *mask) group(g job.Group) job.Group {
	g.Members = slices.Clone(g.Members)
	for i := range g.Members {
		x := &g.Members[i]
		m.add(x.Ref, x.User)
		if !m.owns(x.User) {
			g.Members[i] = job.Member{Ref: m.ref(x.Ref), State: x.State, Predicted: x.Predicted}
		}
	}
	return g
}

// explanation hides other users' jobs in the explanation of one of the viewer's jobs.
func (m *mask) explanation(e *job.Explanation) *job.Explanation {
	if m.all || e == nil {
		return e
	}
	out := *e
	out.Considered = slices.Clone(e.Considered)
	out.Vetoes = slices.Clone(e.Vetoes)
	for i := range out.Considered {
		out.Considered[i].Jobs = m.refs(out.Considered[i].Jobs)
	}
	for i := range out.Vetoes {
		// A veto has no list of co-runners, only its sentence.
		text := out.Vetoes[i].String()
		if at := strings.Index(text, " on "); strings.HasPrefix(text, "with ") && at > 0 {
			names := strings.Split(text[len("with "):at], ", ")
			text = "with " + strings.Join(m.refs(names), ", ") + text[at:]
		}
		_ = out.Vetoes[i].UnmarshalText([]byte(m.text(text))) // never fails
	}
	out.Status = m.text(out.Status)
	return &out
}

var number = regexp.MustCompile(`\b\d+(_\d+)?\b`)

// text replaces the names of other users' jobs in a sentence.
func (m *mask) text(s string) string {
	return number.ReplaceAllStringFunc(s, func(word string) string {
		if name := m.others[word]; name != "" {
			return name
		}
		return word
	})
}

// story hides other users' jobs in a job's story.
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
	// Another user's job may have had this number before, if slurmctld lost its state.
	s.Runs = slices.DeleteFunc(s.Runs, func(r history.Run) bool { return r.User != m.user })
	for i := range s.Runs {
		m.run(&s.Runs[i])
	}
	s.Note = m.explanation(s.Note)
}

// run hides other users' jobs in a run of the viewer's own job.
func (m *mask) run(r *history.Run) {
	for i := range r.CoRunners {
		m.add(r.CoRunners[i].Ref, r.CoRunners[i].Owner)
	}
	with := m.refs(r.With())
	r.CoRunners = nil
	for _, ref := range with {
		r.CoRunners = append(r.CoRunners, history.CoRunner{Ref: ref})
	}
	if r.Outcome != nil {
		own := *r.Outcome
		own.Suspect, own.Blamed, own.Lessons = "", nil, nil
		r.Outcome = &own
	}
}

// ForOwner removes from a run what its owner may not see where Slurm hides jobs.
func ForOwner(r *history.Run) { newMask(viewer{user: r.User}, nil).run(r) }
