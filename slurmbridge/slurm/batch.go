package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"

	"golang.org/x/sync/errgroup"
)

// Bounds of one scontrol that reads its commands from standard input. A release that was built
// without readline takes a line of 4,095 bytes for the end.
const (
	maxLines    = 50
	maxLine     = 4000
	fewLines    = 16 // no second scontrol for less
	mostBatches = 4  // scontrols at a time
	batchSlow   = 3  // multiples of the time that one command may take
	prompt      = "scontrol: "
	batchName   = "scontrol updates"
	batchInput  = "INPUTRC=/dev/null" // nobody's key bindings
)

// line is one command of a batch.
type line struct {
	of   int // the update
	refs []string
	text string // with its newline
	lane string // lines of one lane keep their order
}

// UpdateAll implements job.Slurm: a scontrol that reads commands from its standard input makes an
// update in a third of the time of one that is started for it, and in a tenth of the CPU's.
// What can't be said there, a value with quotes or beyond ASCII, has a command of its own.
func (c *Client) UpdateAll(ctx context.Context, all []job.Update) []error {
	errs := make([]error, len(all))
	var lines []line
	for i := range all {
		if errs[i] = checkUpdate(all[i]); errs[i] != nil {
			continue
		}
		one, ok := linesOf(i, &all[i])
		if !ok || c.noBatch.Load() {
			errs[i] = c.Update(ctx, all[i])
			continue
		}
		lines = append(lines, one...)
	}
	if len(lines) == 1 {
		errs[lines[0].of] = c.Update(ctx, all[lines[0].of])
		return errs
	}
	failed, unread := c.batches(ctx, lines)
	for at, of := range failed {
		errs[at] = of.Err()
	}
	for _, at := range unread {
		errs[at] = c.Update(ctx, all[at])
	}
	return errs
}

// linesOf are the lines that make an update. false: it can't be made so.
func linesOf(at int, u *job.Update) ([]line, bool) {
	words, quotes := u.Words(), 0
	if u.AdminComment != nil && strings.Contains(*u.AdminComment, " ") {
		// Slurm keeps the quotes; Describe takes them off.
		words[len(words)-1], quotes = `AdminComment="`+*u.AdminComment+`"`, 2
	}
	var out []line
	for _, refs := range listsOf(u, maxLine/32) { // a list of jobs costs a third of as many lines
		array, _, _ := strings.Cut(refs[0], "_")
		update := "update JobId=" + strings.Join(refs, ",") + " " + strings.Join(words, " ") + "\n"
		if len(update) > maxLine || !sayable(update, quotes) {
			return nil, false
		}
		out = append(out, line{of: at, refs: refs, lane: array, text: update})
	}
	return out, true
}

// sayable reports whether a line comes through as it is: scontrol splits it at spaces outside of
// quotes, and readline takes bytes beyond ASCII for keys.
func sayable(text string, quotes int) bool {
	return strings.Count(text, `"`) == quotes &&
		!strings.ContainsFunc(strings.TrimSuffix(text, "\n"), func(r rune) bool { return r < ' ' || r > '~' })
}

// batches gives the lines to a few scontrols. It returns what wasn't made, by update, and the updates with lines that
// weren't read.
func (c *Client) batches(ctx context.Context, lines []line) (failed map[int]job.JobErrors, unread []int) {
	workers := min(mostBatches, max(1, len(lines)/fewLines))
	shares := make([][]line, workers)
	of := map[string]int{}
	failed = map[int]job.JobErrors{}
	for i, l := range lines {
		w, known := of[l.lane]
		if !known {
			w = i * workers / len(lines)
			of[l.lane] = w
		}
		shares[w], failed[l.of] = append(shares[w], l), job.JobErrors{}
	}
	var g errgroup.Group
	var mu sync.Mutex // of failed and unread
	for _, share := range shares {
		g.Go(func() error {
			for chunk := range slices.Chunk(share, maxLines) {
				said, err := c.batch(ctx, chunk)
				mu.Lock()
				for _, l := range chunk {
					if errors.Is(err, errNotRead) {
						unread = append(unread, l.of)
						continue
					}
					failed[l.of].Add(err, l.refs)
					for _, ref := range l.refs {
						if e, is := said[ref]; is {
							failed[l.of][ref] = e
						}
					}
				}
				mu.Unlock()
			}
			return nil
		})
	}
	_ = g.Wait()
	slices.Sort(unread)
	return failed, slices.Compact(unread)
}

// errNotRead says that scontrol didn't ask for each of its lines.
var errNotRead = errors.New("scontrol doesn't read commands from its standard input as it did")

// batch has one scontrol make the lines. It returns what Slurm said of jobs, and the error of all other jobs.
func (c *Client) batch(ctx context.Context, lines []line) (said job.JobErrors, err error) {
	var in strings.Builder
	var refs []string
	for _, l := range lines {
		in.WriteString(l.text)
		refs = append(refs, l.refs...)
	}
	out, stderr, err := c.run(ctx, command{
		name: batchName, prog: "scontrol", stdin: in.String(),
		env: []string{batchInput}, slow: batchSlow * c.Timeout,
	})
	var ce *CommandError
	if err != nil && (!errors.As(err, &ce) || ce.Code < 0) {
		return nil, err
	}
	if bytes.Count(out, []byte(prompt)) < len(lines) { // one prompt for each line that was read
		if err == nil { // else it may have been the configuration, for a moment
			c.noBatch.Store(true)
		}
		return nil, errNotRead
	}
	if err == nil {
		return nil, nil
	}
	if said = ofJobs(stderr, refs); unexplained(stderr, len(said) > 0) {
		return said, fmt.Errorf("of some job among many: %w", err)
	}
	return said, nil
}

// unexplained reports whether standard error leaves it open which updates failed. If it names jobs,
// other messages of scontrol, about its configuration say, are no failures.
func unexplained(stderr string, named bool) bool {
	for _, l := range text.Messages(stderr) {
		if len(text.UpdateErrors(l)) == 0 && !(named && strings.HasPrefix(l, prompt)) {
			return true
		}
	}
	return !named
}
