# outer(callback, _) calls middle calls inner, which calls the callback. SIZE is what inner's table says that
# it has put on the stack: 8 is true. 40 is what inner and middle have put there together, so that unwinding
# goes from inner to outer.
        .text
        .globl  outer
        .type   outer, @function
outer:
        .cfi_startproc
        sub     $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    middle
        add     $8, %rsp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size   outer, .-outer

        .type   middle, @function
middle:
        .cfi_startproc
        sub     $24, %rsp
        .cfi_adjust_cfa_offset 24
        call    inner
        add     $24, %rsp
        .cfi_adjust_cfa_offset -24
        ret
        .cfi_endproc
        .size   middle, .-middle

        .type   inner, @function
inner:
        .cfi_startproc
        sub     $8, %rsp
        .cfi_adjust_cfa_offset SIZE
        call    *%rdi
        add     $8, %rsp
        .cfi_adjust_cfa_offset -SIZE
        ret
        .cfi_endproc
        .size   inner, .-inner
        .section .note.GNU-stack,"",@progbits
