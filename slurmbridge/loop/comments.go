package loop

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/comment"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
)

// Bounds on one tick: jobs with comments that are read first, and updates.
const (
	mostRead    = 500
	mostWritten = 20
)

// comments writes jobs' AdminComments, and remembers them by ref. Admins and tools may write them
// at any time (scancel --admin-comment, from 25.11 on), so a comment is read right before it is
// replaced.
type comments struct {
	*Bridge
	text    map[string]string // what they say, without the note of the job's defaults
	foreign map[string]bool   // not written by the bridge: never replaced
}

// forget drops the jobs that are gone and returns the rest.
func (c *comments) forget(jobs []job.Job) map[string]*job.Job {
	seen := make(map[string]*job.Job, len(jobs))
	for i := range jobs {
		seen[jobs[i].Ref] = &jobs[i]
	}
	gone := func(ref string) bool { return seen[ref] == nil }
	maps.DeleteFunc(c.text, func(ref, _ string) bool { return gone(ref) })
	maps.DeleteFunc(c.foreign, func(ref string, _ bool) bool { return gone(ref) })
	return seen
}

// write says in jobs' AdminComments what became of them, a few at a time, and
// only where the bridge wrote the last one. It comes last in a tick: nothing waits for it.
func (c *comments) write(ctx context.Context, p *job.Plan, in *plan.Input) {
	seen := c.forget(in.Snap.Jobs)
	byText := map[string][]string{}
	var all []string
	for ref, text := range comment.Texts(p, in, c.text) {
		j := seen[ref]
		if c.foreign[ref] || c.text[ref] == text || j == nil {
			continue
		}
		all = append(all, ref)
		text = j.Note.Comment(strings.TrimPrefix(text, job.CommentPrefix))
		byText[text] = append(byText[text], ref)
	}
	if len(byText) == 0 {
		return
	}
	read := c.read(ctx, all)
	var updates []job.Update
	for _, text := range slices.Sorted(maps.Keys(byText)) {
		_, said := job.ParseNote(text)
		refs := slices.DeleteFunc(byText[text], func(ref string) bool {
			return !read[ref] || c.foreign[ref] || c.text[ref] == said
		})
		if len(refs) == 0 {
			continue
		}
		if len(updates) == mostWritten {
			break // the next tick continues
		}
		slices.Sort(refs)
		updates = append(updates, job.Update{Jobs: refs, AdminComment: &text})
	}
	for i, err := range c.Slurm.UpdateAll(ctx, updates) {
		u := &updates[i]
		c.Metrics.changed(string(job.StepComment), err)
		c.tracker.Sent(&job.Change{Step: job.StepComment, Update: *u}, err, c.Now())
		if err != nil && !errors.Is(err, job.ErrNoJob) {
			c.Log.Debug("admin comment refused", "jobs", strings.Join(u.Jobs, ","), "err", err)
		}
		c.wrote(u.Jobs, *u.AdminComment) // refused or not: it isn't worth a second try
	}
}

// read reads what jobs' AdminComments say already, and returns the jobs that it has read.
func (c *comments) read(ctx context.Context, refs []string) map[string]bool {
	slices.Sort(refs)
	refs = refs[:min(len(refs), mostRead)]
	there, err := c.Slurm.Describe(ctx, refs)
	if err != nil {
		c.Log.Debug("admin comments not read", "err", err)
		return nil
	}
	read := make(map[string]bool, len(refs))
	for _, ref := range refs {
		d, ok := there[ref]
		if !ok {
			continue
		}
		read[ref] = true
		c.foreign[ref] = d.AdminComment != "" && !strings.HasPrefix(d.AdminComment, job.CommentPrefix)
		if _, c.text[ref] = job.ParseNote(d.AdminComment); c.text[ref] == "" {
			c.text[ref] = job.CommentPrefix // read
		}
	}
	return read
}

// unread are the jobs with AdminComments that haven't been read.
func (c *comments) unread(refs []string) []string {
	return slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return c.text[ref] != "" || c.foreign[ref] })
}

// stamped lists the jobs whose AdminComments the changes replace.
func stamped(all []job.Change) (refs []string) {
	for i := range all {
		if all[i].Update.AdminComment != nil {
			refs = append(refs, all[i].Update.Jobs...)
		}
	}
	return refs
}

// keepForeign takes from changes the AdminComments that aren't the bridge's to write, or haven't been read.
func (c *comments) keepForeign(all []job.Change) {
	for i := range all {
		u := &all[i].Update
		if slices.ContainsFunc(u.Jobs, func(ref string) bool { return c.foreign[ref] || c.text[ref] == "" }) {
			u.AdminComment = nil
		}
	}
}

// wrote notes what AdminComments say now.
func (c *comments) wrote(refs []string, text string) {
	_, text = job.ParseNote(text)
	for _, ref := range refs {
		c.text[ref] = text
	}
}
