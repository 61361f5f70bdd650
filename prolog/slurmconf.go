package prolog

import (
	"bufio"
	"cmp"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/hostlist"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/namespace"
)

// Hooks may read Slurm's configuration but run none of its commands. Slurm passes slurm.conf's path to its hooks; its
// other files are in the same folder, also on a node that gets them from slurmctld.

// Bounds of what is read.
const (
	mostIncludes = 3       // how deep files include each other
	mostConf     = 4 << 20 // bytes of a file
)

// confLine is a line of Slurm's configuration: its values by lower-case key, and its first key.
type confLine struct {
	first string
	value map[string]string
}

// says reports whether the comma-separated value of a key contains a word.
func (l confLine) says(key, word string) bool {
	return slices.ContainsFunc(strings.Split(l.value[key], ","), func(w string) bool { return strings.EqualFold(w, word) })
}

var (
	commas   = pattern.Lazy(`\s*,\s*`)
	keyValue = pattern.Lazy(`([\w.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))`) // keyvalue_pattern of Slurm's parse_config.c
	includes = pattern.Lazy(`(?i)^\s*Include\s+(\S+)`)
)

// confFile returns the path of a file next to slurm.conf, or of slurm.conf itself ("").
func confFile(conf, name string) string {
	conf = cmp.Or(conf, "/etc/slurm/slurm.conf")
	if name == "" {
		return conf
	}
	return filepath.Join(filepath.Dir(conf), name)
}

// confLines yields the lines of a configuration file and of the files it includes. An unreadable file has none.
func confLines(path string) iter.Seq[confLine] {
	return func(yield func(confLine) bool) { readConf(path, mostIncludes, yield) }
}

func readConf(path string, deep int, yield func(confLine) bool) bool {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return true
	}
	defer f.Close()
	sc := bufio.NewScanner(io.LimitReader(f, mostConf))
	sc.Buffer(nil, 64<<10)
	for whole := ""; sc.Scan(); {
		text, _, _ := strings.Cut(sc.Text(), "#")
		if head, continued := strings.CutSuffix(strings.TrimRight(text, " \t\r"), `\`); continued && len(whole) < mostConf {
			whole += head
			continue
		}
		line := parseConf(whole + text)
		whole = ""
		if m := includes().FindStringSubmatch(text); m != nil && deep > 0 {
			// A name without a folder is relative to the including file.
			here := filepath.Join(filepath.Dir(path), filepath.Base(m[1]))
			for _, p := range slices.Compact([]string{m[1], here}) {
				if filepath.IsAbs(p) && !readConf(p, deep-1, yield) {
					return false
				}
			}
			continue
		}
		if line.first != "" && !yield(line) {
			return false
		}
	}
	return true
}

func parseConf(text string) confLine {
	l := confLine{value: map[string]string{}}
	for _, m := range keyValue().FindAllStringSubmatch(commas().ReplaceAllString(text, ","), -1) {
		key := strings.ToLower(m[1])
		l.first = cmp.Or(l.first, key)
		l.value[key] = m[2] + m[3]
	}
	return l
}

// site holds what Slurm's configuration says about the GPUs of a node.
type site struct {
	shard bool // GPUs are shared by gres/shard
	// constrains: Slurm confines each job to its devices, and a job numbers its GPUs from 0 (gres_use_local_device_index
	// of gres.c).
	constrains bool
	// hidesMemory: each job has its own /dev/shm.
	hidesMemory bool
	// contains: each job has an extern step (PrologFlags).
	contains bool
	detect   string     // AutoDetect of gres.conf, in lower case; "" = off
	lines    []gpuLine  // of gres.conf, Name=gpu
	wanted   []gpuCount // the GPUs in slurm.conf's Gres=; nil = unknown
}

// gpuLine is a line of gres.conf: the files of each of its devices.
type gpuLine struct {
	kind    string
	devices [][]string
}

// gpuCount is a part of slurm.conf's Gres=: "gpu:a100:2".
type gpuCount struct {
	kind  string
	count int
}

// readSite reads what slurm.conf (path conf, "" = the default) and the files next to it say about a node.
func readSite(conf, node string) site {
	s := site{}
	cgroup := false
	constrain := false
	spaces := map[string]string{}
	var usual []gpuCount // from NodeName=DEFAULT, for the lines that follow
	for l := range confLines(confFile(conf, "")) {
		s.shard = s.shard || l.says("grestypes", "shard")
		if _, set := l.value["prologflags"]; set { // X11 and RunInJob imply Contain (slurm.conf(5))
			s.contains = l.says("prologflags", "contain") || l.says("prologflags", "x11") || l.says("prologflags", "runinjob")
		}
		if plugins, set := l.value["taskplugin"]; set {
			cgroup = strings.Contains(plugins, "cgroup")
		}
		for _, key := range []string{"jobcontainertype", "namespacetype"} {
			if plugin, set := l.value[key]; set {
				spaces[key] = plugin
			}
		}
		list := l.value["nodename"]
		if l.first != "nodename" {
			continue
		}
		counts := usual
		if gres, set := l.value["gres"]; set {
			counts = gpuCounts(gres)
		}
		switch {
		case strings.EqualFold(list, "DEFAULT"):
			usual = counts
		case slices.Contains(hostlist.Names(list), node):
			s.wanted = counts
		}
	}
	for l := range confLines(confFile(conf, "cgroup.conf")) {
		if v, set := l.value["constraindevices"]; set {
			constrain = slices.Contains([]string{"yes", "true", "up", "1"}, strings.ToLower(v))
		}
	}
	s.constrains = cgroup && constrain
	if file := namespace.File(cmp.Or(spaces["namespacetype"], spaces["jobcontainertype"])); file != "" {
		text, err := os.ReadFile(confFile(conf, file))
		s.hidesMemory = err == nil && namespace.HidesMemory(string(text))
	}
	s.gresConf(confFile(conf, "gres.conf"), node)
	return s
}

// gresConf reads the lines of gres.conf that apply to a node. AutoDetect with a NodeName overrides AutoDetect alone.
func (s *site) gresConf(path, node string) {
	everybodys := ""
	for l := range confLines(path) {
		list, named := l.value["nodename"]
		detect := strings.ToLower(l.value["autodetect"])
		switch {
		case named && !slices.Contains(hostlist.Names(list), node):
			continue
		case named:
			s.detect = cmp.Or(s.detect, detect)
		case l.first == "autodetect":
			everybodys = cmp.Or(everybodys, detect)
		}
		if strings.EqualFold(l.value["name"], "gpu") {
			s.lines = append(s.lines, gpuLine{kind: l.value["type"], devices: devices(l)})
		}
	}
	if s.detect = cmp.Or(s.detect, everybodys); s.detect == "off" {
		s.detect = ""
	}
}

// devices returns the devices of a line: one for each file of File, or a single one with all files of MultipleFiles.
func devices(l confLine) (out [][]string) {
	if several := l.value["multiplefiles"]; several != "" {
		return [][]string{hostlist.Names(several)}
	}
	for _, f := range hostlist.Names(cmp.Or(l.value["file"], l.value["files"])) {
		out = append(out, []string{f})
	}
	return out
}

// gpuCounts reads Gres= of slurm.conf: "gpu:a100:2(S:0-1),gpu:1,shard:300".
func gpuCounts(gres string) []gpuCount {
	out := []gpuCount{}
	for item := range strings.SplitSeq(gres, ",") {
		item, _, _ = strings.Cut(item, "(")
		words := strings.Split(item, ":")
		if !strings.EqualFold(words[0], "gpu") {
			continue
		}
		c := gpuCount{count: 1}
		if n, err := strconv.Atoi(words[len(words)-1]); err == nil && len(words) > 1 {
			c.count = n
			words = words[:len(words)-1]
		}
		if len(words) > 1 && !strings.EqualFold(words[1], "no_consume") {
			c.kind = words[1]
		}
		out = append(out, c)
	}
	return out
}
