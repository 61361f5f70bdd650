package appid

import (
	"slices"
	"strings"
)

// launcher says how a command that starts another one is written: which of its
// words are its own.
type launcher struct {
	// values lists the options with a value in the next word, flags the options without one. If
	// values is "*", each long option that isn't in flags has a value.
	values, flags string
	// pairs lists the options that take two words.
	pairs string
	// subs lists the subcommands; one must be there.
	subs string
	// skip counts the words between the options and the command.
	skip int
	// image: the word before the command is a container's image.
	image bool
	// short lists the one-letter options with a value where values is "*".
	short string
}

// launched holds the launchers by name. Options are written without dashes: MPI's
// take one or two alike.
var launched = map[string]*launcher{
	"srun": {
		values: "*", short: "AacCDdEeGiJLmNnoPpqrSTtWwx",
		flags: "exclusive label unbuffered pty overlap quiet verbose no-kill overcommit oversubscribe multi-prog contiguous preserve-env exact whole hold immediate kill-on-bad-exit disable-status spread-job use-min-nodes parallel reboot test-only propagate wait-all-nodes sig-int quit-on-interrupt",
	},
	"mpirun": mpi, "mpiexec": mpi, "orterun": mpi, "mpiexec.hydra": mpi, "prterun": mpi, "aprun": mpi, "ibrun": mpi, "mpirun_rsh": mpi,
	"singularity": container, "apptainer": container,
	"shifter":     {values: "V volume e env E image i module m w workdir entrypoint"},
	"docker":      oci,
	"podman":      oci,
	"podman-hpc":  oci,
	"conda":       conda,
	"mamba":       conda,
	"micromamba":  conda,
	"env":         {values: "u unset C chdir S split-string"},
	"time":        {values: "f format o output"},
	"nohup":       {},
	"setsid":      {},
	"exec":        {values: "a"},
	"command":     {},
	"unbuffer":    {},
	"stdbuf":      {values: "i o e input output error"},
	"nice":        {values: "n adjustment"},
	"ionice":      {values: "c n class classdata"},
	"chrt":        {skip: 1},
	"timeout":     {values: "k s kill-after signal", skip: 1},
	"numactl":     {values: "N m i C p P l cpunodebind membind interleave physcpubind preferred"},
	"taskset":     {skip: 1},
	"xvfb-run":    {values: "n e f p s w"},
	"nsys":        {subs: "profile launch", values: "o t c e s w y d x output trace capture-range stats sample duration delay force-overwrite gpu-metrics-device"},
	"ncu":         {values: "o k c s export kernel-name launch-count launch-skip section set metrics"},
	"nvprof":      {values: "o export-profile log-file metrics events"},
	"torchrun":    torch,
	"deepspeed":   torch,
	"accelerate":  {subs: "launch", values: "*", flags: torch.flags + " multi_gpu cpu use_deepspeed use_fsdp"},
	"horovodrun":  {values: "np H hosts hostfile p ssh-port"},
	"julia":       {values: "C t p e E L J sysimage threads procs load"},
	"Rscript":     {values: "e"},
	"perl":        {values: "I M"},
	"java":        {values: "cp classpath p"},
	"charmrun":    {values: "p ppn pemap commap"},
	"jsrun":       {values: "n r a c g b d l np rs_per_host tasks_per_rs cpu_per_rs gpu_per_rs bind launch_distribution E env"},
	"lrun":        {values: "n N T g nodes tasks"},
	"ch-run":      {values: "b c set-env unset-env", skip: 1, image: true},
	"sudo":        {values: "u g"},
	"systemd-run": {values: "p u slice property unit"},
}

var (
	mpi = &launcher{
		values: "n np c N npernode ppn npersocket host H hosts hostfile machinefile f x bind-to map-by rank-by wdir wd path prefix output-filename timeout envlist genvlist cpu-set report-uri cpus-per-proc cpus-per-rank tune app configfile S d j",
		pairs:  "mca gmca genv env prtemca pmixmca",
	}
	container = &launcher{
		subs: "exec run", skip: 1, image: true,
		values: "B bind H home W workdir pwd cwd env env-file overlay S scratch app network network-args security add-caps drop-caps mount fusemount hostname dns apply-cgroups pem-path o dst cpus memory",
	}
	oci = &launcher{
		subs: "run", skip: 1, image: true,
		values: "v volume e env w workdir name gpus device u user shm-size ipc network net entrypoint m memory cpus ulimit mount env-file l label pid h hostname security-opt cap-add runtime",
	}
	conda = &launcher{subs: "run", values: "n name p prefix cwd"}
	torch = &launcher{values: "*", short: "m", flags: "standalone no_python no-python run_path run-path m module"}
)

// pythonModules are modules that start another script.
var pythonModules = map[string]*launcher{
	"torch.distributed.run": torch, "torch.distributed.launch": torch, "accelerate.commands.launch": torch,
	"mpi4py": {}, "cProfile": {values: "o s"}, "kernprof": {},
}

// maxNested bounds launchers within launchers.
const maxNested = 16

// unwrap takes the launchers off a command: what is left is the program and its
// arguments; own are the words before them. The program is "" where there is none.
// Of several commands in a bash -c the last is taken.
func unwrap(words []string) (program string, args, own []string) {
	all := words
	for range maxNested {
		words = assigned(words)
		if len(words) == 0 {
			return "", nil, all
		}
		name := base(words[0])
		switch {
		case python(name):
			var done bool
			if program, words, done = pythons(words); done {
				return program, words, all[:len(all)-len(words)]
			}
			continue
		case name == "bash" || name == "sh" || name == "zsh" || name == "ksh":
			inner, rest, ok := shellCommand(words)
			if !ok {
				words = rest // bash script.sh
				if len(words) > 0 {
					return base(words[0]), words[1:], all[:len(all)-len(words)]
				}
				return name, nil, all
			}
			// The last of its commands is what it is for, as with a script.
			list := commands(inner)
			for i := len(list) - 1; i >= 0; i-- {
				if p := assigned(list[i]); len(p) > 0 && !word[base(p[0])] {
					// What is around it stays: the launcher, the other commands, the arguments that it is given.
					around := slices.Concat(all[:len(all)-len(words)], []string{name, "-c"}, rest)
					for k := range list {
						if k != i {
							around = append(around, list[k]...)
						}
					}
					around = append(around, list[i][:len(list[i])-len(p)]...)
					words, all = p, append(around, p...)
					break
				}
				if i == 0 {
					return name, nil, all
				}
			}
			if len(list) == 0 {
				return name, nil, all
			}
			continue
		}
		l := launched[name]
		if l == nil {
			return name, words[1:], all[:len(all)-len(words)+1]
		}
		rest, image := l.strip(words[1:])
		if len(rest) == 0 && image != "" { // singularity run image.sif
			return base(image), nil, all
		}
		if len(rest) == 0 || l.subs != "" && rest == nil {
			return name, nil, all
		}
		if l.image && image != "" && strings.HasPrefix(rest[0], "-") {
			return base(image), rest, all[:len(all)-len(rest)] // its runscript has options
		}
		words = rest
	}
	return "", nil, all
}

// strip takes the launcher's own words off.
func (l *launcher) strip(words []string) (rest []string, image string) {
	if l.subs != "" {
		for len(words) > 0 && strings.HasPrefix(words[0], "-") {
			words = words[1:]
		}
		if len(words) == 0 || !among(l.subs, words[0]) {
			return nil, ""
		}
		words = words[1:]
	}
	for len(words) > 0 {
		w := words[0]
		if w == "--" {
			words = words[1:]
			break
		}
		if !strings.HasPrefix(w, "-") || w == "-" {
			break
		}
		words = words[min(1+l.takes(w), len(words)):]
	}
	for range l.skip {
		if len(words) == 0 {
			return nil, image
		}
		if l.image {
			image = words[0]
		}
		words = words[1:]
	}
	return words, image
}

// takes returns how many words after the option are its own.
func (l *launcher) takes(option string) int {
	name := strings.TrimLeft(option, "-")
	if strings.Contains(name, "=") {
		return 0
	}
	long := strings.HasPrefix(option, "--")
	switch {
	case among(l.pairs, name):
		return 2
	case among(l.flags, name):
		return 0
	case l.values == "*" && long:
		return 1
	case l.values == "*":
		if len(name) == 1 && strings.Contains(l.short, name) {
			return 1
		}
		return 0
	case among(l.values, name):
		return 1
	}
	return 0
}

func python(name string) bool {
	return strings.HasPrefix(name, "python") && strings.Trim(name[len("python"):], "0123456789.") == "" || name == "pypy3" || name == "ipython"
}

// pythons finds what Python runs: a script, a module, or code on its command line.
// Where that starts another program, done is false and rest is that command.
func pythons(words []string) (program string, rest []string, done bool) {
	words = words[1:]
	for len(words) > 0 {
		switch w := words[0]; {
		case (w == "-m" || strings.HasPrefix(w, "-m") && len(w) > 2) && w != "-":
			module := strings.TrimPrefix(w, "-m")
			words = words[1:]
			if module == "" {
				if len(words) == 0 {
					return "python", nil, true
				}
				module, words = words[0], words[1:]
			}
			if l := pythonModules[module]; l != nil {
				rest, _ = l.strip(words)
				if len(rest) > 0 {
					return base(rest[0]), rest[1:], true
				}
			}
			return module, words, true
		case w == "-c":
			return "python", words[1:], true
		case w == "-W" || w == "-X":
			words = words[min(2, len(words)):]
		case w == "-" || !strings.HasPrefix(w, "-"):
			return base(w), words[1:], true
		default:
			words = words[1:]
		}
	}
	return "python", nil, true
}

// shellCommand returns what bash -c runs; ok is false where it runs a script, and
// rest then begins with it.
func shellCommand(words []string) (inner string, rest []string, ok bool) {
	words = words[1:]
	for len(words) > 0 && strings.HasPrefix(words[0], "-") {
		w := words[0]
		words = words[1:]
		if !strings.HasPrefix(w, "--") && strings.Contains(w, "c") && len(words) > 0 {
			return words[0], words[1:], true
		}
		if w == "-o" || w == "--rcfile" {
			words = words[min(1, len(words)):]
		}
	}
	return "", words, false
}

// assigned takes the variables off that stand before a command.
func assigned(words []string) []string {
	for len(words) > 0 {
		if name, _, ok := strings.Cut(words[0], "="); !ok || !variable(name) {
			break
		}
		words = words[1:]
	}
	return words
}

// variable reports whether a shell's variable may have this name.
func variable(s string) bool {
	for i, c := range s {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func among(list, w string) bool {
	return w != "" && !strings.Contains(w, " ") && strings.Contains(list, w) && strings.Contains(" "+list+" ", " "+w+" ")
}
