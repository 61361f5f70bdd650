package drawn

import (
	"bufio"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

//go:embed draw.tsv
var drawTSV string

// row is a line of draw.tsv, which says what its columns mean.
type row struct {
	kind   string
	weight int
	page   string
	option string
	drawn  []string
	only   []string
	mark   string
}

// table are the rows of draw.tsv.
var table = parseTable(drawTSV)

func parseTable(tsv string) []row {
	var out []row
	lines := bufio.NewScanner(strings.NewReader(tsv))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		f := strings.Split(lines.Text(), "\t")
		for i := range f {
			if f[i] == "-" {
				f[i] = ""
			}
		}
		weight, err := strconv.Atoi(f[1])
		if err != nil || len(f) != 7 {
			panic(fmt.Sprintf("drawn: draw.tsv: %q", lines.Text()))
		}
		r := row{kind: f[0], weight: weight, page: f[2], option: f[3], drawn: strings.Split(f[4], " || "), mark: f[6]}
		if f[5] != "" {
			r.only = strings.Split(f[5], ",")
		}
		out = append(out, r)
	}
	return out
}

// dice draws a case.
type dice struct {
	*rand.Rand
	c     *Case
	on    string          // the release of Slurm
	all   bool            // also what is marked "refused" or "open"
	facts map[string]bool // what is true of the cluster
	names []string        // of the jobs drawn so far
}

func (d *dice) chance(permille int) bool { return d.IntN(1000) < permille }

// weighted draws an index by weights, whose sum isn't 0.
func (d *dice) weighted(weights []int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	n := d.IntN(sum)
	return slices.IndexFunc(weights, func(w int) bool { n -= w; return n < 0 })
}

// pick draws one of some words by their weights: "WORD:WEIGHT WORD:WEIGHT".
func (d *dice) pick(list string) string {
	var words []string
	var weights []int
	for _, field := range strings.Fields(list) {
		word, weight, _ := strings.Cut(field, ":")
		words, weights = append(words, word), append(weights, atoi(weight))
	}
	return words[d.weighted(weights)]
}

// fits reports whether what a row needs is true of the cluster, and of the job if there is one.
func (d *dice) fits(r *row, j *Job) bool {
	if r.mark == "refused" && !d.all || slices.Contains(r.only, "open") && !d.all {
		return false
	}
	for _, word := range r.only {
		name, not := strings.CutPrefix(word, "!")
		if word[0] >= '0' && word[0] <= '9' {
			if d.on < word {
				return false
			}
			continue
		}
		if name != "open" && (d.facts[name] || j != nil && d.ofJob(j, name)) == not {
			return false
		}
	}
	return true
}

// ofJob reports whether a word of column "only" is true of a job.
func (d *dice) ofJob(j *Job, word string) bool {
	switch word {
	case "sbatch", "srun", "salloc":
		return j.Client == word
	case "batch":
		return j.Client == "sbatch"
	case "sharer":
		return j.sharer()
	case "gpu":
		return !j.sharer() && slices.ContainsFunc(j.Args, func(a string) bool { return strings.Contains(a, "gpu") })
	case "none":
		return !slices.ContainsFunc(j.Args, func(a string) bool { return strings.Contains(a, "gpu") })
	case "event":
		return len(j.Events) > 0
	case "earlier":
		return len(d.names) > 0
	}
	return strings.HasPrefix(word, "--") && j.has(word)
}

// one draws one of the rows of a kind by weight, nil where none fits.
func (d *dice) one(kind string, j *Job) *row {
	var fit []*row
	var weights []int
	for i := range table {
		if r := &table[i]; r.kind == kind && d.fits(r, j) {
			fit, weights = append(fit, r), append(weights, r.weight)
		}
	}
	if fit == nil {
		return nil
	}
	return fit[d.weighted(weights)]
}

// blanks are how a row writes blanks and a line's end.
var blanks = strings.NewReplacer("␣", " ", "␤", "\n")

var place = regexp.MustCompile(`\{[^}]*\}`)

// write fills in one of a row's alternatives; a node or a partition is the same throughout.
func (d *dice) write(r *row) string {
	node := slurmtest.NodeName(d.IntN(max(1, len(d.c.Nodes))))
	all := d.c.partitions()
	partition := all[d.IntN(len(all))]
	return place.ReplaceAllStringFunc(r.drawn[d.IntN(len(r.drawn))], func(p string) string {
		p = strings.Trim(p, "{}")
		switch p {
		case "node":
			return node
		case "nodes":
			return "n" + strconv.Itoa(1+d.IntN(len(d.c.Nodes))) + ",n1"
		case "feature":
			return []string{"slow", "fast"}[d.IntN(2)]
		case "type":
			types := d.c.Nodes[d.IntN(len(d.c.Nodes))].Types
			return types[d.IntN(len(types))]
		case "partition":
			return partition
		case "name":
			return fmt.Sprint("j", len(d.names)+1)
		case "qos":
			return []string{"normal", "high", "low"}[d.IntN(3)]
		case "earlier":
			return "{" + d.names[len(d.names)-1-d.IntN(min(3, len(d.names)))] + "}"
		}
		var low, high int
		_, _ = fmt.Sscanf(p, "%d-%d", &low, &high)
		return strconv.Itoa(low + d.IntN(high-low+1))
	})
}

// any draws any number of the rows of a kind, each by its own weight.
func (d *dice) any(kind string, j *Job, add func(string)) {
	for i := range table {
		if r := &table[i]; r.kind == kind && d.fits(r, j) && d.chance(r.weight) {
			add(d.write(r))
		}
	}
}

// campaign is a longer case: so many GPUs, jobs that compute and come for so long, and faults.
type campaign struct {
	gpus    int
	lengthS int
	everyS  float64 // mean time between two faults, 0 = none
}

// draw draws a case from a seed, for a release of Slurm's. all: what is refused or known to be wrong as well. long is
// nil for a case of a minute.
func draw(seed uint64, release string, all bool, long *campaign) *Case {
	c := &Case{Seed: seed}
	d := &dice{rand.New(rand.NewPCG(seed, 53)), c, release, all, map[string]bool{}, nil} //nolint:gosec // repeatable, not secret
	gpus := 0
	if long != nil {
		gpus = long.gpus
	}
	d.cluster(release, gpus)
	if long != nil {
		d.campaign(long)
		return c
	}
	work := d.write(d.one("work", nil))
	if work == "serve" {
		d.services()
		return c
	}
	jobs, at := 9+d.IntN(6), 0
	for i := range jobs {
		if j := d.add(i, at); work == "compute" {
			d.compute(j)
		}
		if d.chance(400) {
			at += d.IntN(5)
		}
	}
	if r := d.one("operator", nil); r != nil {
		c.Events = events(d.write(r), 2+d.IntN(12))
	}
	return c
}

// add draws the i-th job, to come at a time.
func (d *dice) add(i, at int) *Job {
	j := d.job(i)
	j.AtS = at
	d.c.Jobs = append(d.c.Jobs, j)
	d.names = append(d.names, j.Name)
	return &d.c.Jobs[i]
}

// compute has a job compute on its GPU, if it has one.
func (d *dice) compute(j *Job) {
	names := apps.Names()
	if one := d.ofJob(j, "sharer") || d.ofJob(j, "gpu"); one && j.Client == "sbatch" && !j.has("--nodes") && !j.has(":") &&
		!j.several() {
		j.App = names[d.IntN(len(names))]
	}
	for i, a := range j.Args {
		if strings.HasPrefix(a, "--comment=app=") {
			_, more, _ := strings.Cut(a, ",")
			j.Args[i] = strings.TrimSuffix("--comment=app="+j.profile()+","+more, ",")
		}
	}
}

// services draws services, which compute until they are cancelled. By the time that the others come one of them has run
// for longer than it takes to know from it what they need.
func (d *dice) services() {
	gpus := 0
	for _, n := range d.c.Nodes {
		gpus += len(n.Types)
	}
	app := d.pick("gromacs:1 alexnet:1")
	for i := range 2*gpus + 3 {
		j := Job{
			Name: fmt.Sprint("j", i+1), Client: "sbatch", User: "games", LengthS: 400, App: app, New: true,
			Args: []string{"--gres=gpu:shared", "--time=10", "--comment=app=server"},
		}
		at, length := 0, 135
		if i > 0 {
			at, length = 150, 15+d.IntN(10)
		}
		j.AtS, j.Within = at, []Event{{length, "scancel $SLURM_JOB_ID"}}
		d.c.Jobs = append(d.c.Jobs, j)
	}
}

// meanS is how long the jobs of a campaign compute, s, in the mean, and load how much work comes, as a part of what
// plain Slurm does.
const meanS, load = 40, 1.1

// sessionIdleS is how long a session of a long campaign is idle, s: a hook may take it for ended after ten minutes.
const sessionIdleS = 660

// campaign draws jobs that come at random, and faults.
func (d *dice) campaign(long *campaign) {
	at := 0.0
	for i := 0; at < float64(long.lengthS); i++ {
		j := d.add(i, int(at))
		at += d.ExpFloat64() * meanS / load / float64(long.gpus)
		j.LengthS = []int{29, 45, 70}[d.IntN(3)]
		j.Args[slices.IndexFunc(j.Args, func(a string) bool { return strings.HasPrefix(a, "--time=") })] = "--time=" +
			strconv.Itoa(2+d.IntN(3))
		d.compute(j)
		for k, s := range j.Steps {
			if strings.HasPrefix(s, "idle ") && long.lengthS >= sessionIdleS {
				j.Steps[k] = fmt.Sprint("idle ", sessionIdleS)
				j.Args[slices.Index(j.Args, "--time="+j.value("--time"))] = "--time=20"
			}
		}
	}
	if long.everyS == 0 {
		return
	}
	var kinds []*cluster.Fault // each as often as it weighs; one that lasts long would leave little of a short campaign
	for i := range cluster.Faults {
		if f := &cluster.Faults[i]; f.Least <= float64(long.lengthS)/10 {
			kinds = append(kinds, slices.Repeat([]*cluster.Fault{f}, f.Weight)...)
		}
	}
	for at := d.ExpFloat64() * long.everyS; at < float64(long.lengthS); at += d.ExpFloat64() * long.everyS {
		f := kinds[d.IntN(len(kinds))]
		s := f.Least + (f.Most-f.Least)*d.Float64()
		d.c.Faults = append(d.c.Faults, Fault{int(at), f.Name, d.IntN(len(d.c.Nodes)), s})
	}
}

// profile is the application by which the bridge knows a job.
func (j *Job) profile() string {
	if j.App == "" {
		return appName(j.LengthS)
	}
	return fmt.Sprint(j.App, "-", j.LengthS)
}

// events are a row's commands, the first at a time and each other one by so many seconds later.
func events(drawn string, at int) (out []Event) {
	for i, command := range strings.Split(drawn, " ; ") {
		if i > 0 {
			after, rest, _ := strings.Cut(strings.TrimPrefix(command, "+"), " ")
			s, _ := strconv.Atoi(after)
			at, command = at+s, rest
		}
		if command != "" {
			out = append(out, Event{at, command})
		}
	}
	return out
}

// cluster draws the cluster, with so many GPUs; 0 = some.
func (d *dice) cluster(release string, all int) {
	c := d.c
	const shapes = "1x1:8 1x2:14 1x3:8 1x4:8 1x8:3 2x1:12 2x2:14 2x4:6 3x1:9 3x2:8 4x1:4 4x2:6"
	const models = "v100:5 titanxp:3 a100:1 h200:1"
	var nodes, gpus int
	_, _ = fmt.Sscanf(d.pick(shapes), "%dx%d", &nodes, &gpus)
	if all > 0 {
		gpus = min(gpus, 4)
		nodes = max(1, all/gpus)
	}
	if text.SharesInstances(release) && d.chance(60) {
		c.Instances = []string{"3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"}
		gpus = 1
	}
	c.Sharing = d.pick("mps:6 shard:4")
	c.CPUs = []int{8, 16, 16, 32}[d.IntN(4)]
	c.MemMiB = []int{8000, 16000, 16000}[d.IntN(3)]
	model := d.pick(models)
	if c.Instances != nil {
		model, c.Sharing = "a100", "shard"
	}
	uneven := nodes > 1 && gpus > 1 && c.Instances == nil && d.chance(250)
	features, sockets := nodes > 1 && d.chance(500), c.Instances == nil && d.chance(250)
	mixed, cores := d.chance(150), sockets && d.chance(600)
	d.facts["cores"] = cores
	unshared := []int(nil)
	if gpus > 2 && !uneven && d.chance(100) {
		unshared = []int{d.IntN(gpus)}
	}
	for i := range nodes {
		gpus := gpus
		if uneven && i == nodes-1 {
			gpus = 1
		}
		n := Node{Model: model, Types: slices.Repeat([]string{model}, gpus), Unshared: unshared, Cores: cores}
		if nodes > 1 && c.Instances == nil && d.chance(150) {
			n.Model = d.pick(models)
			n.Types = slices.Repeat([]string{n.Model}, gpus)
		}
		if mixed && gpus > 1 {
			n.Types[gpus-1] = "big"
		}
		var more []string
		if features {
			more = append(more, "Features="+[]string{"slow", "fast"}[i%2])
		}
		if sockets {
			more = append(more, fmt.Sprintf("Sockets=2 CoresPerSocket=%d ThreadsPerCore=1", c.CPUs/2))
		}
		d.any("node", nil, func(s string) { more = append(more, s) })
		n.More = strings.Join(more, " ")
		c.Nodes = append(c.Nodes, n)
	}
	d.facts["nodes2"], d.facts["gpus2"], d.facts["features"], d.facts["sockets"] = nodes > 1, gpus > 1, features, sockets
	d.facts["types"] = c.Instances == nil
	d.accounting()
	if d.chance(80) {
		d.facts["reservation"] = true
		c.Before = append(c.Before, d.write(d.one("reserve", nil)))
	}
	if d.chance(250) && !d.facts["qospreempt"] {
		d.facts["preempt"] = true
		c.Conf = append(c.Conf, strings.Fields(d.write(d.one("preempt", nil)))...)
	}
	d.any("conf", nil, func(s string) { c.Conf = append(c.Conf, blanks.Replace(s)) })
	c.Conf = slices.CompactFunc(c.Conf, func(a, b string) bool { return key(a) == key(b) })
	d.facts["power"] = c.savesPower()
	d.facts["licenses"] = slices.ContainsFunc(c.Conf, func(s string) bool { return strings.HasPrefix(s, "Licenses=") })
	d.partitions()
	d.settings(release)
}

// accounting draws what sacctmgr is told; most clusters have no accounting.
func (d *dice) accounting() {
	if !d.chance(80) {
		return
	}
	c := d.c
	d.facts["accounting"], d.facts["qospreempt"] = true, d.chance(500)
	c.Accounting = []string{
		"add account lab", "add user games Account=lab", "add user news Account=lab",
		"add user slurm Account=lab",
	} // admins.md: SlurmUser needs an account
	d.any("account", nil, func(s string) { c.Accounting = append(c.Accounting, strings.Split(s, " ; ")...) })
	c.Conf = append(c.Conf, d.write(d.one("enforce", nil)), "AccountingStorageTRES=gres/gpu,gres/"+c.Sharing)
	if d.facts["qospreempt"] {
		c.Conf = append(c.Conf, "PreemptType=preempt/qos", "PreemptMode=REQUEUE")
	}
}

// key is the name of a line's setting.
func key(line string) string {
	name, _, _ := strings.Cut(line, "=")
	return name
}

// partitions draws further partitions, and what a DEFAULT line says for partition gpu.
func (d *dice) partitions() {
	c := d.c
	d.any("partition", nil, func(s string) { c.Conf = append(c.Conf, s) })
	d.facts["partitions"] = len(c.partitions()) > 1
	d.facts["scavenge"] = slices.Contains(c.partitions(), "scavenge")
	var sched, lines []string
	d.any("sched", nil, func(s string) { sched = append(sched, s) })
	d.any("default", nil, func(s string) {
		if !slices.ContainsFunc(lines, func(l string) bool { return key(l) == key(s) }) {
			lines = append(lines, s)
		}
	})
	if sched != nil {
		c.Conf = append(c.Conf, "SchedulerParameters="+strings.Join(append(sched,
			"bf_interval=1,sched_interval=1"), ","))
	}
	if lines == nil {
		return
	}
	line := "PartitionName=DEFAULT " + strings.Join(lines, " ")
	if d.chance(300) { // for all of them, the gate's too
		c.Conf = append([]string{line}, c.Conf...)
		return
	}
	c.Conf = append(c.Conf, line)
}

// settings draws the bridge's settings, and the site's script.
func (d *dice) settings(release string) {
	c := d.c
	c.Site = d.pick(":7 early:2 late:1")
	if c.Site == "" {
		d.any("plugin", nil, func(s string) { c.Plugins = s })
	}
	d.facts["mixed"] = true
	c.Settings = []string{"max_delay: 30s", "sharers_only: []"}
	if d.chance(150) { // the gate is in the jobs' partitions
		c.Settings = append(c.Settings, `gate_partition: ""`)
	}
	if !text.MistakesGPUs(release) {
		return
	}
	shared := slices.DeleteFunc(c.partitions(), c.ofWholeNodes) // admins.md: leave those out of the list
	if d.chance(550) || !slices.Contains(shared, slurmtest.Partition) {
		c.Settings = append(c.Settings, "mixed_partitions: share")
		return
	}
	// The gate's partition has nodes, too.
	d.facts["mixed"] = false
	c.Settings[1] = "sharers_only: [slurmbridge, " + strings.Join(shared, ", ") + "]"
}

// job draws the i-th job.
func (d *dice) job(i int) Job {
	j := Job{Name: fmt.Sprint("j", i+1), User: d.pick("games:8 news:2")}
	j.Client = d.write(d.one("client", nil))
	if r := d.one("request", &j); r.drawn[0] != "" {
		j.Args = strings.Fields(d.write(r))
	}
	j.LengthS = 4 + d.IntN(10)
	if d.chance(220) {
		j.LengthS = 20 + d.IntN(10)
	} else if d.chance(50) {
		j.LengthS = 40 + d.IntN(15)
	}
	j.Args = append(j.Args, fmt.Sprintf("--time=%d", 1+d.IntN(3)))
	if j.sharer() || d.chance(700) {
		said := "app=" + appName(j.LengthS)
		d.any("comment", &j, func(s string) { said += "," + s })
		j.Args = append(j.Args, "--comment="+said)
	}
	if !d.chance(300) { // a third of the jobs has nothing more
		d.any("job", &j, func(s string) {
			for _, word := range strings.Fields(s) {
				j.Args = append(j.Args, blanks.Replace(word))
			}
		})
	}
	if i := slices.Index(j.Args, ":"); i >= 0 { // the second part of a het job comes last
		second := slices.Clone(j.Args[i:])
		end := slices.IndexFunc(second, func(a string) bool { return a == "--ntasks=1" }) + 1
		j.Args = slices.Concat(j.Args[:i], second[end:], second[:end])
	}
	if j.Client != "srun" && d.chance(450) {
		for range 1 + d.IntN(2) {
			j.Steps = append(j.Steps, d.write(d.one("step", &j)))
		}
		if strings.HasPrefix(j.Steps[len(j.Steps)-1], "idle ") { // what it has afterwards
			j.Steps = append(j.Steps, "--ntasks=1")
		}
	}
	if command := d.write(d.one("within", &j)); command != "" {
		j.Within = []Event{{2 + j.LengthS/2, command}}
	}
	if j.Client == "sbatch" && d.chance(60) {
		j.Exit = 3
	}
	for k := range table {
		if r := &table[k]; r.kind == "event" && len(j.Events) == 0 && d.fits(r, &j) && d.chance(r.weight/2) {
			j.Events = events(d.write(r), 1+d.IntN(12))
		}
	}
	return j
}

// appName is the application of a job that sleeps for so many s.
func appName(s int) string { return fmt.Sprint("sleep", s) }
