// Takes memory and hugepages, says what the kernel said, and holds on until it is asked to end.
//
// It runs in containers of the bed, where busybox has no word for MAP_HUGETLB.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const (
	smallPage = 4 << 10
	hugePage  = 2 << 20
	hugetlb   = 0x40000 // MAP_HUGETLB; the kernel's default size is 2 Mi on the bed's nodes
)

// take maps so many bytes and touches every page of them.
func take(bytes int, page int, flags int) error {
	if bytes == 0 {
		return nil
	}
	flags |= syscall.MAP_PRIVATE | syscall.MAP_ANONYMOUS
	memory, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	if err != nil {
		return err
	}
	for at := 0; at < bytes; at += page {
		memory[at] = 1
	}
	return nil
}

// word is the error's name as C programs know it.
func word(err error) string {
	switch err {
	case nil:
		return "taken"
	case syscall.ENOMEM:
		return "ENOMEM"
	default:
		return err.Error()
	}
}

func main() {
	memory := flag.Int("memory", 0, "bytes of ordinary memory to take")
	pages := flag.Int("pages", 0, "hugepages of 2 Mi to take")
	more := flag.Int("more", 0, "hugepages to try after that, in one piece")
	flag.Parse()
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	fmt.Println("memory:", word(take(*memory, smallPage, 0)))
	fmt.Println("pages:", word(take(*pages*hugePage, hugePage, hugetlb)))
	if *more > 0 {
		fmt.Println("more:", word(take(*more*hugePage, hugePage, hugetlb)))
	}
	fmt.Println("holding")
	<-asked
}
