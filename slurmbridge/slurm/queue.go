package slurm

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// One look at the queue is one squeue with a format of its own (-O's fields,
// which have --gpus; -o's don't).
//
// A row starts with the job's number and a nonce, then come the fields that only
// Slurm writes, separated by '|', then each field that a user can put text into
// (accounts, features and comments may hold any character, line ends included),
// each ended by the nonce, the comment last. The nonce is drawn for each look and
// handed over in the environment, where other users can't read it: whatever a
// user writes, he can't end a field or begin a row. Names, commands and working
// directories are not asked for at all.
var (
	// plain are the fields ended by '|'; the last of them is ended by the nonce.
	plain = []string{
		"arrayjobid", "arraytaskid", "hetjobid", "userid", "username", "partition",
		"state", "prioritylong", "submittime", "eligibletime", "starttime", "timelimit",
		"numnodes", "numcpus", "tres-alloc", "requeue", "oversubscribe", "nodelist",
	}
	// free are the fields ended by the nonce.
	free = []string{
		"tres-per-node", "tres-per-job", "tres-per-socket", "tres-per-task",
		"dependency", "reqnodes", "excnodes", "reason", "feature", "account", "qos", "reservation", "comment",
	}
)

// Positions in plain.
const (
	pArray = iota
	pTask
	pHet
	pUID
	pUser
	pPartition
	pState
	pPriority
	pSubmit
	pEligible
	pStart
	pLimit
	pNodes
	pCPUs
	pTres
	pRequeue
	pShare
	pNodeList
	numPlain
)

// Positions in free.
const (
	fPerNode = iota
	fPerJob
	fPerSocket
	fPerTask
	fDependency
	fReqNodes
	fExcNodes
	fReason
	fFeature
	fAccount
	fQOS
	fReservation
	fComment
	numFree
)

// maxComment is how much of a comment is kept, bytes.
const maxComment = 1024

// queueFormat is what squeue -O takes, with a row's marks in it. Old releases
// (22.05) don't have the excluded nodes among their fields: exc false.
func queueFormat(nonce string, exc bool) string {
	var b strings.Builder
	b.WriteString("jobid:" + nonce)
	for i, f := range plain {
		end := "|"
		if i == len(plain)-1 {
			end = nonce
		}
		b.WriteString("," + f + ":" + end)
	}
	for i, f := range free {
		if i != fExcNodes || exc {
			b.WriteString("," + f + ":" + nonce)
		}
	}
	return b.String()
}

// newNonce draws the mark of one look. It begins with neither a digit nor a dot,
// which the format would take for a width, and holds no comma.
func newNonce() string { return "~" + rand.Text()[:12] }

// A gateJob is a row that may be the gate: ours, without a GPU, pending or not.
type gateJob struct {
	ID    string
	State job.JobState
	Begin time.Time
}

// queueParser turns squeue's output into jobs. It keeps what repeats from look to
// look (names, requests, dependency lists), so that a queue that hardly changes
// costs hardly any allocation, and nothing of the output itself, so that a job
// that is remembered doesn't keep a whole look in memory.
type queueParser struct {
	// ours says whose job may be the gate.
	ours func(uid uint32) bool
	// noExc: the rows have no excluded nodes.
	noExc   bool
	strings interner
	asks    map[Tres]job.GPURequest
	deps    map[string]job.Dependencies
	// awaited holds the jobs and arrays whose end a job without a GPU waits for, as
	// of the last output.
	awaited map[string]bool
}

// errRow says that squeue printed something that is no row of ours.
var errRow = errors.New("squeue: output not understood")

// parse reads one look's output: the jobs that ask for a GPU in the order they
// are in, and the gates. It returns an error if a row is cut short or is not in
// the format asked for; a job of a kind the bridge has no use for is passed over.
func (p *queueParser) parse(dst []job.Job, out []byte, nonce string) (jobs []job.Job, gates []gateJob, err error) {
	mark := []byte(nonce)
	p.strings.next()
	if len(p.asks) > 4096 {
		clear(p.asks)
	}
	if len(p.deps) > 4096 {
		clear(p.deps)
	}
	if p.asks == nil {
		p.asks, p.deps = map[Tres]job.GPURequest{}, map[string]job.Dependencies{}
	}
	jobs, p.awaited = dst[:0], nil
	var pf [numPlain][]byte
	var ff [numFree][]byte
	for row := 0; len(out) > 0; row++ {
		id, rest, ok := bytes.Cut(out, mark)
		if !ok {
			return nil, nil, fmt.Errorf("%w: row %d has no start", errRow, row)
		}
		number, isNumber := digits(id)
		if !isNumber {
			return nil, nil, fmt.Errorf("%w: row %d begins with %.40q", errRow, row, id)
		}
		head, rest, ok := bytes.Cut(rest, mark)
		if !ok {
			return nil, nil, fmt.Errorf("%w: job %d is cut short", errRow, number)
		}
		for i := range ff {
			if i == fExcNodes && p.noExc {
				continue
			}
			if ff[i], rest, ok = bytes.Cut(rest, mark); !ok {
				return nil, nil, fmt.Errorf("%w: job %d is cut short", errRow, number)
			}
		}
		if len(rest) > 0 && rest[0] != '\n' {
			return nil, nil, fmt.Errorf("%w: job %d has more fields than asked for", errRow, number)
		}
		out = rest[min(1, len(rest)):]

		ask := p.ask(&ff)
		mayBeGate := ask.Kind == job.NoGPU && string(ff[fComment]) == job.GateName
		if ask.Kind == job.NoGPU && !mayBeGate {
			for _, d := range p.dependencies(ff[fDependency]).List {
				if d.OnEnd() {
					if p.awaited == nil {
						p.awaited = map[string]bool{}
					}
					p.awaited[d.Job] = true
				}
			}
			continue
		}
		if !cutPlain(head, &pf) {
			return nil, nil, fmt.Errorf("%w: job %d has too few fields", errRow, number)
		}
		uid, ok := digits(pf[pUID])
		if !ok || uid > math.MaxUint32 {
			return nil, nil, fmt.Errorf("%w: job %d has the user number %.20q", errRow, number, pf[pUID])
		}
		state, active := baseState(pf[pState])
		if mayBeGate {
			if p.ours != nil && p.ours(uint32(uid)) {
				gates = append(gates, gateJob{ID: string(id), State: state, Begin: parseTime(pf[pEligible])})
			}
			continue
		}
		if !active {
			continue
		}
		j := job.Job{
			ID: number, UID: uint32(uid), State: state, Request: ask,
			User: p.text(pf[pUser]), Partition: p.text(pf[pPartition]), Reason: p.text(ff[fReason]),
			Submit: parseTime(pf[pSubmit]), Eligible: parseTime(pf[pEligible]),
			TimeLimit:  parseLimit(p.strings.get(pf[pLimit])),
			Dependency: p.dependencies(ff[fDependency]),
			ReqNodes:   p.text(ff[fReqNodes]), ExcNodes: p.text(ff[fExcNodes]), Features: p.text(ff[fFeature]), Account: p.text(ff[fAccount]), QOS: p.text(ff[fQOS]),
			Reservation: p.text(ff[fReservation]), Exclusive: exclusive(pf[pShare]),
			Requeue: string(pf[pRequeue]) == "1", Nodes: p.text(pf[pNodeList]),
			Comment: p.text(ff[fComment][:min(maxComment, len(ff[fComment]))]),
		}
		if !p.name(&j, id, &pf) {
			continue
		}
		j.Priority, _ = digits(pf[pPriority])
		if h, ok := digits(pf[pHet]); ok {
			j.HetID = h
		}
		setSize(&j, pf[pNodes], pf[pCPUs], pf[pTres])
		if state != job.Pending {
			j.Start = parseTime(pf[pStart])
		}
		jobs = append(jobs, j)
	}
	return jobs, gates, nil
}

// name sets how scontrol names the job. false: a row for several array tasks at
// once, which squeue -r doesn't print and which no one task could be told from.
func (p *queueParser) name(j *job.Job, id []byte, pf *[numPlain][]byte) bool {
	if isNone(string(pf[pTask])) {
		j.Ref = p.strings.get(id)
		return true
	}
	array, ok := digits(pf[pArray])
	if _, isTask := digits(pf[pTask]); !ok || !isTask {
		return false
	}
	j.ArrayID = array
	var buf [48]byte
	ref := append(append(append(buf[:0], pf[pArray]...), '_'), pf[pTask]...)
	j.Ref = p.strings.get(ref)
	return true
}

func (p *queueParser) ask(ff *[numFree][]byte) job.GPURequest {
	any := false
	for i := fPerNode; i <= fPerTask; i++ {
		any = any || !isNone(string(ff[i]))
	}
	if !any {
		return job.GPURequest{}
	}
	t := Tres{
		PerNode: p.strings.get(ff[fPerNode]), PerJob: p.strings.get(ff[fPerJob]),
		PerSocket: p.strings.get(ff[fPerSocket]), PerTask: p.strings.get(ff[fPerTask]),
	}
	a, ok := p.asks[t]
	if !ok {
		a = ParseAsk(t)
		p.asks[t] = a
	}
	return a
}

func (p *queueParser) dependencies(b []byte) job.Dependencies {
	if isNone(string(b)) {
		return job.Dependencies{}
	}
	s := p.strings.get(b)
	d, ok := p.deps[s]
	if !ok {
		d = ParseDependencies(s)
		p.deps[s] = d
	}
	return d
}

// text is a field's value, "" where Slurm prints that there is none.
func (p *queueParser) text(b []byte) string {
	if isNone(string(b)) {
		return ""
	}
	return p.strings.get(b)
}

// cutPlain cuts the fields that only Slurm writes.
func cutPlain(b []byte, dst *[numPlain][]byte) bool {
	for i := range dst {
		f, rest, more := bytes.Cut(b, []byte{'|'})
		if dst[i] = f; more != (i < numPlain-1) {
			return false
		}
		b = rest
	}
	return true
}

// baseState maps what squeue's state field says to the states the bridge tells
// apart. A state that is only a flag on a base state (CONFIGURING, RESIZING, …)
// becomes its base state. false: the job is over.
func baseState(b []byte) (job.JobState, bool) {
	switch string(b) {
	case "PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED":
		return job.Pending, true
	case "RUNNING", "CONFIGURING", "RESIZING", "SIGNALING", "POWER_UP_NODE", "EXPEDITING":
		return job.Running, true
	case "SUSPENDED", "STOPPED":
		return job.Suspended, true
	case "COMPLETING", "STAGE_OUT", "REQUEUED":
		return job.Completing, true
	}
	return job.JobState(b), false
}

// exclusive reads whether a job keeps others off its nodes: all others (NO), or those
// of other users or groups.
func exclusive(b []byte) bool {
	switch string(b) {
	case "NO", "USER", "MCS":
		return true
	}
	return false
}

// setSize sets what a job takes, from its trackable resources ("cpu=2,mem=200M,
// node=1,…"). squeue's own numbers won't do: MinMemory is per CPU or per node, it
// doesn't say which, and NumNodes of a pending job is a guess (2 for -n2 -c4).
func setSize(j *job.Job, nodes, cpus, tres []byte) {
	n, _ := leading(nodes)
	c, _ := leading(cpus)
	mem := 0.0
	for len(tres) > 0 {
		var item []byte
		item, tres, _ = bytes.Cut(tres, []byte{','})
		if v, ok := bytes.CutPrefix(item, []byte("mem=")); ok {
			mem = parseMiB(v)
		} else if v, ok := bytes.CutPrefix(item, []byte("node=")); ok {
			n, _ = leading(v)
		}
	}
	j.NumNodes, j.CPUs = int(min(n, maxCount)), int(min(c, maxCount))
	j.HostMemMiB = mem / float64(max(1, n))
}

// interner gives equal bytes one string. What a look didn't use is forgotten at
// the next but one.
type interner struct{ now, old map[string]string }

func (t *interner) next() {
	t.now, t.old = t.old, t.now
	if t.now == nil {
		t.now = map[string]string{}
	}
	clear(t.now)
}

func (t *interner) get(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := t.now[string(b)]; ok {
		return s
	}
	s, ok := t.old[string(b)]
	if !ok {
		s = string(b)
	}
	if t.now == nil {
		t.now = map[string]string{}
	}
	t.now[s] = s
	return s
}

// parseExcluded reads `squeue -o '%A|%x'`: a job's number and the nodes it
// excludes. Neither can hold a user's text.
func parseExcluded(out []byte, dst map[int64]string) {
	for line := range bytes.Lines(out) {
		id, nodes, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte{'|'})
		if n, isNumber := digits(id); ok && isNumber {
			if isNone(string(nodes)) {
				dst[n] = ""
			} else {
				dst[n] = string(nodes)
			}
		}
	}
}

// validRef tells whether a name is a job's or an array task's and nothing else.
func validRef(ref string) bool {
	id, task, isTask := strings.Cut(ref, "_")
	if n, ok := digits([]byte(id)); !ok || n < 1 || n > math.MaxUint32 {
		return false
	}
	if isTask {
		n, err := strconv.ParseUint(task, 10, 32)
		return err == nil && strconv.FormatUint(n, 10) == task
	}
	return true
}
