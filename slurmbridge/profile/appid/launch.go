package appid

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// launcher describes a command that starts another command: which words are the launcher's own.
type launcher struct {
	// values lists the options with a value in the next word, flags the options without one. If
	// values is "*", each long option that isn't in flags has a value.
	values, flags string
	pairs         string // options with two values
	subs          string // subcommands; one must be present
	skip          int    // the number of words between the options and the command
	image         bool   // the word before the command is a container's image
	short         string // one-letter options with a value, if values is "*"
	script        bool   // the command is a script in the launcher's language
}

// launched holds the launchers by name. Options are written without dashes, since MPI's take one or two.
var launched = map[string]*launcher{
	"srun": {
		values: "*", short: "AacCDdEeGiJLmNnoPpqrSTtWwx",
		flags: "exclusive label unbuffered pty overlap quiet verbose no-kill overcommit oversubscribe multi-prog " +
			"contiguous preserve-env exact whole hold immediate kill-on-bad-exit disable-status spread-job use-min-nodes " +
			"parallel reboot test-only propagate wait-all-nodes sig-int quit-on-interrupt",
	},
	"mpirun": mpi, "mpiexec": mpi, "orterun": mpi, "mpiexec.hydra": mpi, "prterun": mpi,
	"aprun": mpi, "ibrun": mpi, "mpirun_rsh": mpi,
	"singularity": container, "apptainer": container,
	"shifter":    {values: "V volume e env E image i module m w workdir entrypoint"},
	"docker":     oci,
	"podman":     oci,
	"podman-hpc": oci,
	"conda":      conda,
	"mamba":      conda,
	"micromamba": conda,
	"env":        {values: "u unset C chdir S split-string"},
	"time":       {values: "f format o output"},
	"nohup":      {},
	"setsid":     {},
	"exec":       {values: "a"},
	"command":    {},
	"unbuffer":   {},
	"stdbuf":     {values: "i o e input output error"},
	"nice":       {values: "n adjustment"},
	"ionice":     {values: "c n class classdata"},
	"chrt":       {skip: 1},
	"timeout":    {values: "k s kill-after signal", skip: 1},
	"numactl":    {values: "N m i C p P l cpunodebind membind interleave physcpubind preferred"},
	"taskset":    {skip: 1},
	"xvfb-run":   {values: "n e f p s w"},
	"nsys": {subs: "profile launch", values: "o t c e s w y d x output trace capture-range stats sample " +
		"duration delay force-overwrite gpu-metrics-device"},
	"ncu":       {values: "o k c s export kernel-name launch-count launch-skip section set metrics"},
	"nvprof":    {values: "o export-profile log-file metrics events"},
	"torchrun":  torch,
	"deepspeed": torch,
	"accelerate": {subs: "launch", values: "*", script: true, flags: torch.flags + " multi_gpu cpu use_deepspeed " +
		"use_fsdp"},
	"horovodrun": {values: "np H hosts hostfile p ssh-port"},
	"julia":      {values: "C t p e E L J sysimage threads procs load", script: true},
	"Rscript":    {values: "e", script: true},
	"perl":       {values: "I M", script: true},
	"java":       {values: "cp classpath p"},
	"charmrun":   {values: "p ppn pemap commap"},
	"jsrun": {values: "n r a c g b d l np rs_per_host tasks_per_rs cpu_per_rs gpu_per_rs bind " +
		"launch_distribution E env"},
	"lrun":        {values: "n N T g nodes tasks"},
	"ch-run":      {values: "b c set-env unset-env", skip: 1, image: true},
	"sudo":        {values: "u g"},
	"systemd-run": {values: "p u slice property unit"},
}

var (
	mpi = &launcher{
		values: "n np c N npernode ppn npersocket host H hosts hostfile machinefile f x bind-to map-by rank-by wdir wd " +
			"path prefix output-filename timeout envlist genvlist cpu-set report-uri cpus-per-proc cpus-per-rank tune app " +
			"configfile S d j",
		pairs: "mca gmca genv env prtemca pmixmca",
	}
	container = &launcher{
		subs: "exec run", skip: 1, image: true,
		values: "B bind H home W workdir pwd cwd env env-file overlay S scratch app network network-args security " +
			"add-caps drop-caps mount fusemount hostname dns apply-cgroups pem-path o dst cpus memory",
	}
	oci = &launcher{
		subs: "run", skip: 1, image: true,
		values: "v volume e env w workdir name gpus device u user shm-size ipc network net entrypoint m memory cpus " +
			"ulimit mount env-file l label pid h hostname security-opt cap-add runtime",
	}
	conda = &launcher{subs: "run", values: "n name p prefix cwd"}
	torch = &launcher{values: "*", script: true, flags: "standalone no_python no-python run_path run-path m module"}
)

// pythonModules are modules that start another script.
var pythonModules = map[string]*launcher{
	"torch.distributed.run": torch, "torch.distributed.launch": torch, "accelerate.commands.launch": torch,
	"deepspeed.launcher.runner": torch, "mpi4py": {}, "cProfile": {values: "o s"}, "kernprof": {},
}

// maxNested bounds launchers within launchers, and shells within shells.
const maxNested = 16

// command holds indexes into a command's words.
type command struct {
	program int // the program; -1 = none
	args    int // its first argument
	means   role
}

// role is the meaning of a program's word.
type role int

const (
	binary    role = iota
	script         // a file that an interpreter reads
	module         // a module of Python's
	shellCode      // a shell's -c
	otherCode      // code for another interpreter
)

// unwrap skips the launchers of a command.
func unwrap(words []string) command {
	at := 0
	for range maxNested {
		for at < len(words) && assigns(words[at]) {
			at++
		}
		if at == len(words) {
			break
		}
		name := base(words[at])
		if python(name) {
			c, more := pythons(words, at)
			if !more {
				return c
			}
			at = c.program
			continue
		}
		if shells[name] {
			return shell(words, at)
		}
		l := launched[name]
		if l == nil {
			return command{at, at + 1, binary}
		}
		next, img := l.strip(words, at+1)
		switch {
		case img >= 0 && (next == len(words) || strings.HasPrefix(words[next], "-")):
			return command{img, next, binary} // the image's runscript, perhaps with options
		case next == len(words) || next < 0:
			return command{at, len(words), binary}
		case l.script:
			return command{next, next + 1, script}
		}
		at = next
	}
	return command{-1, len(words), binary}
}

// strip returns the index of the command after the launcher's own words, -1 = none, and of the image, -1 = none.
func (l *launcher) strip(words []string, at int) (next, img int) {
	img = -1
	if l.subs != "" {
		for at < len(words) && strings.HasPrefix(words[at], "-") {
			at++
		}
		if at == len(words) || !among(l.subs, words[at]) {
			return -1, img
		}
		at++
	}
	for at < len(words) {
		w := words[at]
		if w == "--" {
			at++
			break
		}
		if !strings.HasPrefix(w, "-") || w == "-" {
			break
		}
		at += 1 + l.takes(w)
	}
	if l.skip > 0 {
		if l.image && at < len(words) {
			img = at
		}
		at += l.skip
	}
	return min(at, len(words)), img
}

// takes returns the number of words after an option that are its values.
func (l *launcher) takes(option string) int {
	name := strings.TrimLeft(option, "-")
	long := strings.HasPrefix(option, "--")
	switch {
	case strings.Contains(name, "="):
		return 0
	case among(l.pairs, name):
		return 2
	case among(l.flags, name):
		return 0
	case l.values != "*" && among(l.values, name), l.values == "*" && long,
		l.values == "*" && len(name) == 1 && strings.Contains(l.short, name):
		return 1
	}
	return 0
}

func python(name string) bool {
	version, ok := strings.CutPrefix(name, "python")
	return ok && strings.Trim(version, "0123456789.") == "" || name == "pypy3" || name == "ipython"
}

// pythons finds the program of a Python command: a script, a module, or code on the command line. more: the module is a
// launcher, and its command begins at the program.
func pythons(words []string, own int) (c command, more bool) {
	at := own + 1
	for at < len(words) {
		w := words[at]
		at++
		switch {
		case strings.HasPrefix(w, "-m"):
			name := strings.TrimPrefix(w, "-m")
			if name == "" {
				if at == len(words) {
					return command{-1, at, binary}, false
				}
				name = words[at]
				at++
			}
			if l := pythonModules[name]; l != nil {
				if next, _ := l.strip(words, at); next < len(words) {
					return command{next, next + 1, script}, !strings.HasSuffix(words[next], ".py")
				}
			}
			return command{at - 1, at, module}, false
		case w == "-c":
			return command{own, min(at+1, len(words)), otherCode}, false
		case w == "-W" || w == "-X":
			at++
		case w == "-" || !strings.HasPrefix(w, "-"):
			return command{at - 1, at, script}, false
		}
	}
	return command{own, len(words), otherCode}, false
}

var shells = set("sh bash dash ash ksh zsh")

// shell finds the program of a shell's command: code on the command line, or a script.
func shell(words []string, at int) command {
	own := at
	for at++; at < len(words) && strings.HasPrefix(words[at], "-"); at++ {
		w := words[at]
		switch {
		case !strings.HasPrefix(w, "--") && strings.Contains(w, "c") && at+1 < len(words):
			return command{at + 1, at + 2, shellCode}
		case w == "-o" || w == "--rcfile":
			at++
		}
	}
	if at >= len(words) {
		return command{own, len(words), otherCode}
	}
	return command{at, at + 1, script}
}

func assigns(w string) bool {
	name, _, ok := strings.Cut(w, "=")
	return ok && syntax.ValidName(name)
}

func among(list, w string) bool { return w != "" && slices.Contains(strings.Fields(list), w) }

func set(words string) map[string]bool {
	out := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		out[w] = true
	}
	return out
}
